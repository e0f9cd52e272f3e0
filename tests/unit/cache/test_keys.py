from __future__ import annotations

from dataclasses import replace

from opsin.cache.keys import FeatureKeys, Scopes
from opsin.vision.plan import Size, VisionPlan
from opsin.vision.recipe import Filter, resized

TILE = Size(128, 128)
PLAN = VisionPlan(
    original=TILE,
    used=TILE,
    num_tiles=1,
    image_tokens=16,
    marker_tokens=3,
    slot="<image>",
    recipe=resized(TILE, Filter.LANCZOS),
)


def test_a_key_changes_with_everything_that_changes_the_features() -> None:
    keys = FeatureKeys(("model", "commit"))
    base = keys.key("scope", "00", PLAN)
    others = [
        keys.key("other scope", "00", PLAN),
        keys.key("scope", "01", PLAN),
        keys.key("scope", "00", replace(PLAN, image_tokens=17)),
        keys.key("scope", "00", replace(PLAN, recipe=resized(TILE, Filter.BICUBIC))),
        FeatureKeys(("model", "another")).key("scope", "00", PLAN),
        FeatureKeys(("modelcommit", "")).key("scope", "00", PLAN),
    ]
    assert base == FeatureKeys(("model", "commit")).key("scope", "00", PLAN)
    assert len({base, *others}) == 1 + len(others)


def test_a_scope_is_opaque_and_its_own() -> None:
    scopes = Scopes(b"secret")
    assert scopes.of("alice") == scopes.of("alice") != scopes.of("bob")
    assert "alice" not in scopes.of("alice")
    assert Scopes().of("alice") != Scopes().of("alice")
