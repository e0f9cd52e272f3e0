"""Pictures towards an upstream whose model is known: counted, limited, scaled, reported and compared."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import random
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opsin.bench.photo import PhotoMaker
from opsin.core.errors import ConfigError
from opsin.models.facts import known_checkpoints
from opsin.settings import DEMO_MODEL, Settings
from opsin.testing.picture_cache import PictureCache
from opsin.testing.script import Script, UsageShape
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from opsin.vision.plan import Size
from opsin.vision.registry import family_for
from tests.corpus.pictures import data_url, encoded, exif_block, scene
from tests.integration.gateways import Served, gateway

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
SMOLVLM = "HuggingFaceTB/SmolVLM-256M-Instruct"
QUESTION = "What is it?"
ESTIMATED = 3 + 8 + 32
"""What the question is taken for where no tokenizer is at hand."""


@functools.cache
def phone_photo() -> bytes:
    """12 megapixels, stored on its side, as phones do it."""
    exif = b"Exif\0\0" + exif_block(6)
    small = PhotoMaker(1).draw(0, 1008, 756).convert("RGB")
    return encoded(small.resize((4032, 3024)), "jpeg", quality=85, exif=exif)


@asynccontextmanager
async def in_front(
    upstream: ScriptedUpstream | None = None, *, exclusive: bool = False, **settings: Any
) -> AsyncGenerator[tuple[Served, ScriptedUpstream]]:
    """A gateway before a scripted engine."""
    upstream = upstream or ScriptedUpstream(max_model_len=None)
    async with (
        serve(upstream) as url,
        gateway(
            engine="upstream",
            upstream={"url": url, "exclusive": exclusive},
            media={"render_timeout_s": 60},
            **settings,
        ) as served,
    ):
        yield served, upstream


async def ask(served: Served, *pictures: bytes, detail: str = "auto", **fields: Any) -> tuple[int, dict[str, Any]]:
    urls = [data_url(one, "") for one in pictures]
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": detail}} for url in urls]
    content = [*parts, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 100, **fields}
    return await post(served, "chat/completions", body)


async def post(served: Served, route: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    data = BytesIO(json.dumps(body).encode())
    async with served.http.post(f"{served.url}/v1/{route}", data=data) as response:
        return response.status, await response.json()


def sent_pictures(upstream: ScriptedUpstream, number: int = -1) -> list[bytes]:
    """The files that a request brought to the engine."""
    (message,) = json.loads(upstream.received[number].body)["messages"]
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


async def metric(served: Served, name: str) -> dict[str, float]:
    """Samples by their labels."""
    async with served.http.get(f"{served.url}/metrics") as response:
        found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", await response.text(), re.MULTILINE)
    return {labels: float(value) for labels, value in found}


async def test_a_phone_photo_is_served_scaled_and_reported_or_refused_with_both_numbers() -> None:
    async with in_front(model=QWEN, max_model_len=8192) as (served, upstream):
        status, answer = await ask(served, phone_photo())
        assert status == 200, answer
        (report,) = answer["opsin"]["images"]
        used = Size(report["used_width"], report["used_height"])
        assert (report["width"], report["height"]) == (3024, 4032)
        assert report["scaled"] is True
        assert report["image_tokens"] == used.width * used.height // 28**2 <= 8192 - ESTIMATED - 100 - 2
        assert report["image_tokens"] > 7900
        assert [warning["code"] for warning in answer["opsin"]["warnings"]] == ["image_downscaled"]

        (sent,) = sent_pictures(upstream)
        picture = Image.open(BytesIO(sent))
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (used.width, used.height))
        assert not picture.getexif()
        counted = family_for(known_checkpoints()[QWEN].vision).count(used)
        assert (counted.used, counted.image_tokens) == (used, report["image_tokens"])

        before = await metric(served, "vlm_image_preprocess_seconds_count")
        status, refusal = await ask(served, phone_photo(), detail="high")
        assert (status, refusal["error"]["code"]) == (400, "context_length_exceeded")
        assert "15554 tokens" in refusal["error"]["message"]
        assert f"limit is {8192 - ESTIMATED - 100} " in refusal["error"]["message"]
        assert len(upstream.received) == 1
        assert await metric(served, "vlm_image_preprocess_seconds_count") == before


async def test_low_is_sent_at_the_low_size() -> None:
    async with in_front(model=QWEN) as (served, upstream):
        _, answer = await ask(served, encoded(scene(size=(1920, 1080)), "png"), detail="low")
        (report,) = answer["opsin"]["images"]
        assert (report["used_width"], report["used_height"], report["image_tokens"]) == (672, 364, 312)
        assert "scaled" not in report  # it is what was asked for
        (sent,) = sent_pictures(upstream)
        picture = Image.open(BytesIO(sent))
        assert (picture.format, picture.size) == ("PNG", (672, 364))


async def test_what_fits_is_sent_as_it_came_and_counted() -> None:
    picture = encoded(scene(size=(640, 480)), "webp", lossless=True)
    async with in_front(model=QWEN) as (served, upstream):
        _, answer = await ask(served, picture, picture)
        assert sent_pictures(upstream) == [picture, picture]
        assert answer["opsin"]["images"] == [
            {
                "format": "webp", "width": 640, "height": 480, "used_width": 644, "used_height": 476, "tiles": 1,
                "image_tokens": 391,
            }
        ] * 2  # fmt: skip


async def test_a_model_that_enlarges_every_picture_is_refused_instead() -> None:
    picture = encoded(scene(size=(512, 512)), "png")
    async with in_front(model=SMOLVLM, max_model_len=1100) as (served, upstream):
        for detail in ("auto", "low"):
            status, refusal = await ask(served, picture, detail=detail)
            assert (status, refusal["error"]["code"]) == (400, "context_length_exceeded")
            assert "1127 tokens" in refusal["error"]["message"]
        assert not upstream.received


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_image_tokens": 390}, "391 visual tokens with the detail asked for; the limit is 390"),
        ({"max_request_image_tokens": 781}, "782 visual tokens with the detail asked for; the limit is 781"),
    ],
)
async def test_the_operators_limits_hold(limits: dict[str, int], message: str) -> None:
    picture = encoded(scene(size=(640, 480)), "png")
    async with in_front(model=QWEN, gateway={**limits, "over_budget": "reject"}) as (served, upstream):
        status, refusal = await ask(served, picture, picture)
        assert (status, refusal["error"]["code"]) == (400, "too_many_image_tokens")
        assert message in refusal["error"]["message"]
        assert not upstream.received
    async with in_front(model=QWEN, gateway=limits) as (served, upstream):
        status, answer = await ask(served, picture, picture)
        assert status == 200
        tokens = [report["image_tokens"] for report in answer["opsin"]["images"]]
        assert max(tokens) <= limits.get("max_image_tokens", 391)
        assert sum(tokens) <= limits.get("max_request_image_tokens", 10**6)


async def test_what_an_upstream_calls_its_model_is_enough() -> None:
    """vLLM tells the checkpoint as ``root`` where its name is another."""
    for upstream in (ScriptedUpstream(model=QWEN), ScriptedUpstream(model="mine", root=QWEN)):
        async with in_front(upstream) as (served, _):
            status, answer = await ask(served, phone_photo())
            assert status == 200
            (report,) = answer["opsin"]["images"]
            assert report["image_tokens"] < 4096  # which the upstream says is its length
            assert served.application.gateway.models.default.names.default in (QWEN, "mine")


async def test_without_a_model_nothing_changes() -> None:
    picture = phone_photo()
    async with in_front(max_model_len=100) as (served, upstream):
        for detail in ("auto", "low", "high"):
            status, answer = await ask(served, picture, detail=detail)
            assert status == 200
            assert answer["opsin"]["images"] == [{"format": "jpeg", "width": 3024, "height": 4032}]
            assert "warnings" not in answer["opsin"]
        assert {hashlib.sha256(one).digest() for n in range(3) for one in sent_pictures(upstream, n)} == {
            hashlib.sha256(picture).digest()
        }
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}


async def test_of_an_opsin_behind_opsin_all_that_it_tells_is_told_on() -> None:
    workers = {"render_workers": 1}
    async with AsyncExitStack() as both:
        behind = await both.enter_async_context(gateway(media=workers))
        behind.application.gateway.models.default.names.adopt("a", revision="0123abc", max_model_len=4096)
        front = await both.enter_async_context(gateway(engine="upstream", upstream={"url": behind.url}, media=workers))
        (model,) = await _models(front)
        assert (model["revision"], model["max_model_len"]) == ("0123abc", 4096)
        body = {"messages": [{"role": "user", "content": "Hello."}]}
        async with front.http.post(f"{front.url}/v1/tokens", json=body) as response:
            assert (await response.json())["max_model_len"] == 4096
        _, answer = await front.chat()
        assert set(answer["opsin"]["stage_sources"].values()) == {"upstream opsin"}


async def _models(served: Served) -> list[dict[str, Any]]:
    async with served.http.get(f"{served.url}/v1/models") as response:
        return (await response.json())["data"]


async def test_the_names_that_clients_ask_for_are_not_the_counted_model() -> None:
    async with in_front(model=QWEN, max_model_len=8192) as (served, _):
        async with served.http.get(f"{served.url}/v1/models") as response:
            (model,) = (await response.json())["data"]
        assert (model["id"], model["max_model_len"]) == ("scripted", 8192)
        assert (await ask(served, model="scripted"))[0] == 200
        assert (await ask(served, model=QWEN))[0] == 404
    async with in_front(model=QWEN, served_model_name=("mine",)) as (served, _):
        assert tuple(served.application.gateway.models.default.names) == ("mine",)


@pytest.mark.parametrize(
    ("shape", "good", "mismatch"),
    [
        (UsageShape.IMAGE_TOKENS, (391,), "image_tokens planned=391"),
        # vLLM counts placeholders: with the markers, where the processor writes them, else without
        (UsageShape.MULTIMODAL_TOKENS, (391, 393), "placeholder_tokens planned=393"),
    ],
)
async def test_a_difference_to_the_engines_image_tokens_is_counted_and_logged(
    shape: UsageShape, good: tuple[int, ...], mismatch: str, caplog: pytest.LogCaptureFixture
) -> None:
    picture = encoded(scene(size=(640, 480)), "png")
    async with in_front(model=QWEN) as (served, upstream):
        upstream.queue(*(Script(image_tokens=tokens, usage_shape=shape) for tokens in (*good, 390)))
        for tokens in good:
            _, answer = await ask(served, picture)
            details = answer["usage"]["prompt_tokens_details"]
            assert details["image_tokens"] == 391
            assert ("multimodal_tokens" in details) is (shape is UsageShape.MULTIMODAL_TOKENS)
            assert details.get("multimodal_tokens", {"image": tokens}) == {"image": tokens}
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}
        with caplog.at_level(logging.WARNING, "opsin.gateway.plan_check"):
            await ask(served, picture)
        counted = await metric(served, "opsin_token_plan_mismatch_total")
        assert counted == {'{engine="upstream",model="scripted"}': 1.0}
    (line,) = [record.getMessage() for record in caplog.records if "plan_mismatch" in record.getMessage()]
    assert f"plan_mismatch={mismatch} counted=390 model=scripted engine=upstream" in line


async def test_where_only_the_sum_is_told_an_exact_text_is_compared() -> None:
    """The demo model's own tokenizer and template are at hand."""
    picture = encoded(scene(size=(64, 64)), "png")
    async with gateway(
        engine="local", local={"num_threads": 1, "warm_up_s": 0}, media={"render_timeout_s": 60}
    ) as local:
        _, answer = await ask(local, temperature=0)
        text_tokens = answer["usage"]["prompt_tokens"]
        _, answer = await ask(local, picture, temperature=0)
        prompt_tokens = answer["usage"]["prompt_tokens"]
        assert await metric(local, "opsin_token_plan_mismatch_total") == {}
    async with in_front(model=DEMO_MODEL) as (served, upstream):
        upstream.queue(*(Script(prompt_tokens=tokens) for tokens in (text_tokens, prompt_tokens, prompt_tokens + 1)))
        await ask(served)
        await ask(served, picture)
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}
        await ask(served, picture)
        assert await metric(served, "opsin_token_plan_mismatch_total") == {'{engine="upstream",model="scripted"}': 1.0}


async def test_an_estimated_text_is_not_compared() -> None:
    async with in_front(model=QWEN) as (served, upstream):
        upstream.queue(Script(prompt_tokens=5))
        await ask(served)
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}


async def test_the_fake_engine_can_count_otherwise() -> None:
    picture = encoded(scene(size=(640, 480)), "png")
    async with gateway(model=QWEN, fake={"extra_image_tokens": 1}) as served:
        await ask(served)
        _, answer = await ask(served, picture)
        assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 392
        assert await metric(served, "opsin_token_plan_mismatch_total") == {'{engine="fake",model="fake"}': 1.0}


async def test_the_start_says_what_is_counted_and_on_what_that_rests(caplog: pytest.LogCaptureFixture) -> None:
    unverified = next(facts for facts in known_checkpoints().values() if not facts.vision_verified)
    with caplog.at_level(logging.INFO, "opsin"):
        async with in_front(model=unverified.model_id):
            pass
        async with in_front(gateway={"max_image_tokens": 5}):
            pass
    lines = [record.getMessage() for record in caplog.records]
    (counts,) = [line for line in lines if line.startswith("counts=")]
    assert f"counts={unverified.model_id}" in counts
    assert "text_tokens=estimated" in counts
    assert [
        line
        for line in lines
        if line.startswith(f"nobody has checked the facts that count the pictures of {unverified.model_id}")
    ]
    assert [line for line in lines if line.endswith("(--model): max_image_tokens")]


async def test_a_folder_that_is_named_has_to_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        async with in_front(model=str(tmp_path)):
            pass


@pytest.mark.parametrize("name", ["nobody/nothing", "/models/of/the/upstream"])
async def test_a_model_that_cannot_be_had_counts_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with in_front(model=name, hub={"offline": True}) as (served, _):
        status, answer = await ask(served, encoded(scene(), "png"))
    assert status == 200
    assert "image_tokens" not in answer["opsin"]["images"][0]
    assert [record for record in caplog.records if record.getMessage().startswith("pictures are not counted: ")]


# The price and the request


NUM_BODIES = 60
DEMO_FOLDER = Settings().model_location
WORDS = ("How", "many", "rings?", "<image>", "<|im_end|>", "다섯", "total", "\n\n", "What is it? " * 40)


def random_body(rng: random.Random) -> dict[str, Any]:
    """Up to three pictures of any shape among texts of any kind; about half of them fit."""
    parts = [_picture(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    parts += [{"type": "text", "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))} for _ in range(2)]
    rng.shuffle(parts)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
    if rng.random() < 0.7:
        body["max_tokens"] = rng.choice((1, 100, 900, 3000))
    elif rng.random() < 0.5:
        body["min_tokens"] = rng.choice((1, 1400, 3000))
    if rng.random() < 0.3:
        body["mm_processor_kwargs"] = rng.choice(
            (
                {"max_pixels": 100_000},
                {"min_pixels": 1_000, "max_pixels": 300_000},
                {"max_pixels": 5},
                {"min_pixels": 9},
            )
        )
    return body


def _picture(rng: random.Random) -> dict[str, Any]:
    size = rng.choice(
        ((rng.randint(1, 1200), rng.randint(1, 1200)), (rng.randint(1, 90), rng.randint(1, 90)), (900, 3))
    )
    exif = {"exif": b"Exif\0\0" + exif_block(rng.randint(1, 8))}
    url = data_url(encoded(Image.new("RGB", size, "teal"), "jpeg", **exif), "image/jpeg")
    return {"type": "image_url", "image_url": {"url": url, "detail": rng.choice(("auto", "low", "high"))}}


@pytest.mark.parametrize(
    ("tokenizer", "limits"),
    [(None, {}), (DEMO_FOLDER, {"max_image_tokens": 300}), (DEMO_FOLDER, {"over_budget": "reject"})],
    ids=["estimated text", "exact text", "nothing scaled"],
)
async def test_the_price_is_what_becomes_of_the_request(tokenizer: str | None, limits: dict[str, Any]) -> None:
    outcomes: set[str] = set()
    upstream = ScriptedUpstream(max_model_len=None)
    async with (
        serve(upstream) as url,
        gateway(
            engine="upstream",
            upstream={"url": url, "tokenizer": tokenizer},
            model=QWEN,
            max_model_len=1000,
            media={"render_timeout_s": 60},
            gateway=limits,
        ) as served,
    ):
        for seed in range(NUM_BODIES):
            body = random_body(random.Random(seed))
            priced, told = await post(served, "tokens", body)
            if priced == 200 and told["fits"] is not False and told["prompt_tokens"] is not None:
                upstream.queue(Script(prompt_tokens=told["prompt_tokens"]))
            answered, answer = await post(served, "chat/completions", body)
            outcomes.add(_outcome(told))
            if priced != 200:
                assert (priced, told) == (answered, answer)
            elif answered != 200:
                assert (told["fits"], told["refusal"]) == (False, answer["error"])
            else:
                _assert_same(body, told, answer)
                assert (told["text_tokens"] is None) is (tokenizer is None)
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}
    assert outcomes >= {"invalid_request", "context_length_exceeded", "fits", "left open", "scaled"} - (
        {"scaled"} if limits.get("over_budget") else set()
    )


def _outcome(told: dict[str, Any]) -> str:
    if "error" in told:
        return told["error"]["code"]
    if "refusal" in told:
        return told["refusal"]["code"]
    if told["fits"] is None:
        return "left open"
    return "scaled" if any(image["scaled"] for image in told["images"]) else "fits"


def _assert_same(body: dict[str, Any], told: dict[str, Any], answer: dict[str, Any]) -> None:
    reports = answer["opsin"].get("images", [])
    assert told["fits"] is (True if reports else None), body
    for before, after in zip(told["images"], reports, strict=True):
        same = ("width", "height", "used_width", "used_height", "tiles", "image_tokens")
        assert [before[name] for name in same] == [after[name] for name in same]
        assert before["scaled"] is after.get("scaled", False)
        assert before["exact"] is True
        assert before["marker_tokens"] == 2
    assert told.get("warnings", []) == answer["opsin"].get("warnings", [])


async def test_a_text_that_goes_with_more_is_not_exact() -> None:
    """The engine's template may write the tools into the prompt."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    async with in_front(model=DEMO_MODEL) as (served, upstream):
        upstream.queue(Script(prompt_tokens=5))
        assert (await ask(served, tools=tools))[0] == 200
        assert await metric(served, "opsin_token_plan_mismatch_total") == {}
        body = {"messages": [{"role": "user", "content": QUESTION}], "tools": tools}
        _, told = await post(served, "tokens", body)
        assert (told["text_tokens"], told["prompt_tokens"], told["image_tokens"]) == (None, None, 0)


async def test_bounds_of_a_request_make_the_picture_smaller_as_here() -> None:
    picture = encoded(Image.new("RGB", (1000, 700), "teal"), "png")
    for detail in ("auto", "high"):
        async with in_front(model=QWEN) as (served, upstream):
            _, answer = await ask(served, picture, detail=detail, mm_processor_kwargs={"max_pixels": 200_000})
            (report,) = answer["opsin"]["images"]
            here = family_for(known_checkpoints()[QWEN].vision).with_max_pixels(200_000).count(Size(1000, 700))
            used = Size(report["used_width"], report["used_height"])
            assert (used, report["image_tokens"]) == (here.used, here.image_tokens)
            assert "scaled" not in report  # it is what was asked for
            (sent,) = sent_pictures(upstream)
            assert Image.open(BytesIO(sent)).size == (used.width, used.height)
            assert b"mm_processor_kwargs" not in upstream.received[-1].body


@pytest.mark.parametrize("route", ["tokens", "chat/completions"])
async def test_bounds_need_a_model(route: str) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "mm_processor_kwargs": {"max_pixels": 200_000}}
    async with in_front() as (served, upstream):
        status, refusal = await post(served, route, body)
        assert (status, refusal["error"]["param"]) == (400, "mm_processor_kwargs")
        assert not upstream.received
    async with in_front(model=QWEN) as (served, upstream):
        status, refusal = await post(served, route, {**body, "mm_processor_kwargs": {"max_pixels": 5}})
        assert (status, refusal["error"]["param"]) == (400, "mm_processor_kwargs.max_pixels")
        assert not upstream.received


def sent_urls(upstream: ScriptedUpstream) -> list[str | None]:
    """Of the last request's pictures; None went by name alone."""
    (message,) = json.loads(upstream.received[-1].body)["messages"]
    urls = [part["image_url"] for part in message["content"] if part["type"] == "image_url"]
    return [url and url["url"] for url in urls]


async def test_what_llama_cpp_does_not_read_is_written_anew_without_loss_and_said_so() -> None:
    drawn, turned = scene(size=(64, 48)), encoded(scene(size=(64, 48)), "jpeg", exif=b"Exif\0\0" + exif_block(6))
    webp, png = encoded(drawn, "webp", lossless=True), encoded(drawn, "png")
    timings = {"prompt_ms": 0.001, "predicted_ms": 0.002}
    upstream = ScriptedUpstream(owned_by="llamacpp")
    upstream.queue(Script(beside_usage={"timings": timings}), Script())
    async with in_front(upstream) as (served, _):
        status, answer = await ask(served, webp, png, turned)
        assert status == 200, answer
        first, second, third = sent_pictures(upstream)
        assert Image.open(BytesIO(first)).format == "PNG"
        assert Image.open(BytesIO(first)).tobytes() == drawn.convert("RGB").tobytes()
        assert second == png
        assert (Image.open(BytesIO(third)).format, Image.open(BytesIO(third)).size) == ("JPEG", (48, 64))
        reports = [(one["format"], one.get("sent_as"), one.get("sent_width")) for one in answer["opsin"]["images"]]
        assert reports == [("webp", "png", 64), ("png", None, None), ("jpeg", "jpeg:95", 48)]
        warnings = [(warning["code"], warning["message"]) for warning in answer["opsin"]["warnings"]]
        assert warnings == [
            ("image_converted", "The engine does not read this WebP as it is; it got it as PNG."),
            ("image_converted", "The engine does not read this JPEG as it is; it got it as JPEG and upright."),
        ]
        timeline = answer["opsin"]["timeline"]
        assert answer["opsin"]["stage_sources"] == {"prefill": "llama.cpp", "decode": "llama.cpp"}
        assert {"media_load_ms", "preprocess_ms", "prefill_ms", "decode_ms", "upstream_ms"} < timeline.keys()
        assert sum(timeline.values()) - timeline["total_ms"] == pytest.approx(timeline["total_ms"], abs=0.01)
        assert timeline["upstream_ms"] > 0
        _, answer = await ask(served)
        assert "stage_sources" not in answer["opsin"]
        stages = await metric(served, "opsin_stage_seconds_count")
        assert (stages['{stage="upstream"}'], stages['{stage="prefill"}']) == (2, 1)


async def test_offload_sends_no_more_than_the_engine_would_make_of_a_picture_and_never_enlarges() -> None:
    large, small = encoded(scene(size=(2560, 640)), "png"), encoded(scene(size=(320, 240)), "png")
    async with in_front(model=SMOLVLM, gateway={"offload": True, "offload_format": "webp-lossless"}) as (
        served,
        upstream,
    ):
        _, answer = await ask(served, large, small)
        sent, same = sent_pictures(upstream)
        picture = Image.open(BytesIO(sent))
        assert (picture.format, picture.size) == ("WEBP", (2048, 512))
        assert same == small
        report, other = answer["opsin"]["images"]
        assert (report["sent_as"], report["sent_width"], report["sent_height"]) == ("webp-lossless", 2048, 512)
        assert "scaled" not in report  # the model gets what it would have got
        assert "sent_as" not in other
        family = family_for(known_checkpoints()[SMOLVLM].vision)
        assert report["image_tokens"] == family.count(Size(2560, 640)).image_tokens
    async with in_front(model=SMOLVLM) as (served, upstream):
        await ask(served, large)
        assert sent_pictures(upstream) == [large]


async def test_offload_is_refused_where_no_size_is_known_or_the_engine_does_not_read_its_format() -> None:
    with pytest.raises(ConfigError, match=r"--offload: .* --model"):
        async with in_front(gateway={"offload": True}):
            pass
    webp = {"offload": True, "offload_format": "webp-lossless"}
    with pytest.raises(ConfigError, match=r"--offload-format webp-lossless: the engine does not read WebP"):
        async with in_front(ScriptedUpstream(owned_by="llamacpp"), model=SMOLVLM, gateway=webp):
            pass


async def test_hits_are_pictures_that_the_engine_had_and_nobody_elses_names_are_ours() -> None:
    picture = encoded(scene(size=(64, 64)), "png")
    cache = PictureCache()
    upstream = ScriptedUpstream(owned_by="vllm", pictures=cache)
    async with in_front(upstream, exclusive=True) as (served, _):
        await ask(served, picture)
        decoded = await metric(served, "vlm_image_preprocess_seconds_count")
        await ask(served, picture, picture)
        assert sent_urls(upstream) == [None, None]
        assert await metric(served, "vlm_image_preprocess_seconds_count") == decoded
        cache.names.clear()
        await ask(served, picture)
        assert await metric(served, "vlm_image_cache_hits_total") == {"": 2.0}
        assert await metric(served, "vlm_image_cache_misses_total") == {"": 2.0}
    (name,) = cache.names
    async with in_front(upstream, exclusive=True) as (served, _):  # another start has another secret
        await ask(served, picture)
        assert sent_urls(upstream) != [None]
        assert name not in upstream.received[-1].body.decode()
