"""What may change while opsin runs, and what is refused in words."""

from __future__ import annotations

from typing import Any

from opsin.reloading import Changes, changes_between, name_of
from opsin.settings import Settings, load_settings

A = {"name": "a", "upstream": {"url": "http://a:1"}}
B = {"name": "b", "upstream": {"url": "http://b:1"}}
LOCAL = {"name": "l", "model": "demo"}


def of(*models: dict[str, Any], **values: Any) -> Settings:
    return load_settings({"models": list(models), **values})


def changes(before: Settings, after: Settings) -> Changes:
    return changes_between(before, before.each_model, after)


def moved(change: Changes) -> list[str]:
    return [name_of(one) for one in change.moved]


def begun(change: Changes) -> list[str]:
    return [name_of(one) for one in change.begun]


def test_nothing() -> None:
    found = changes(of(A, LOCAL), of(A, LOCAL))
    assert (found.moved, found.begun, found.ended, found.refused, found.order) == ((), (), (), (), ("a", "l"))


def test_replicas_move() -> None:
    more = {**A, "upstream": {"url": ["http://a:1", "http://a:2"], "draining": ["http://a:1"]}}
    found = changes(of(A, B), of(more, B))
    assert (moved(found), begun(found), found.ended, found.refused) == (["a"], [], (), ())
    one = load_settings({"upstream": {"url": "http://a:1"}})
    assert moved(changes(one, load_settings({"upstream": {"url": ["http://a:1", "http://a:2"]}}))) == ["the model"]


def test_an_upstream_comes_goes_and_is_replaced() -> None:
    found = changes(of(A, LOCAL), of(LOCAL, B))
    assert (moved(found), begun(found), found.ended, found.order) == ([], ["b"], ("a",), ("l", "b"))
    other_length = {**A, "max_model_len": 2048}
    assert begun(changes(of(A), of(other_length))) == ["a"]
    assert begun(changes(of(A), of(A, gateway={"max_image_tokens": 7}))) == ["a"]


def test_the_rest_needs_a_restart_and_is_named() -> None:
    found = changes(of(A, LOCAL), of(A, B, log_level="debug", gateway={"port": 9}, media={"max_image_side": 9}))
    assert found.refused == ("log_level", "gateway.port", "media.max_image_side", "model l, which is no upstream")
    assert (moved(found), begun(found), found.ended) == ([], ["b"], ())
    other = {**LOCAL, "max_model_len": 512}
    assert changes(of(A, LOCAL), of(A, other)).refused == ("model l, which is no upstream",)
    assert changes(of(A), of(A, LOCAL)).refused == ("model l, which is no upstream",)


def test_what_was_refused_once_is_no_change_later() -> None:
    start = of(A)
    running = changes(start, of(A, gateway={"port": 9})).moved or start.each_model
    found = changes_between(start, running, of(A))
    assert (found.moved, found.begun, found.ended) == ((), (), ())
