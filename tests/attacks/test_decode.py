"""Public cases of section 2C, as far as they are about pictures and bodies, at a gateway with the fake engine.

The numbers are those of the collection of public cases; each test says what went wrong elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
import pytest_asyncio

from opsin.core.errors import MediaError
from opsin.media.config import PILLOW_MAX_PIXELS, MediaConfig
from opsin.media.loader import inspect
from opsin.media.types import ImageFormat
from tests.attacks.decoding import ask, body_of, held, is_alive, post, python, refusal, until_decoding
from tests.corpus.bodies import content_body
from tests.corpus.pictures import data_url, encoded, idat, ihdr, png, scene
from tests.corpus.rare import bmp, rare_bad_pictures
from tests.integration.gateways import Served, gateway, public_side

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = encoded(scene(), "png")


def header_only(width: int, height: int) -> bytes:
    """A PNG that says a size and has one pixel."""
    return png(ihdr(width, height), idat([b"\0\0\0"]))


def flat(width: int, height: int) -> bytes:
    """A true PNG of one colour, of a few bytes for its size."""
    return encoded(scene(size=(1, 1)).resize((width, height)), "png", compress_level=9)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attacked() -> AsyncGenerator[Served]:
    async with gateway(media={"render_timeout_s": 60}) as served:
        yield served


def memory_of(served: Served) -> int:
    """Of this process, in which the gateway runs, and of its workers."""
    pids = (os.getpid(), *served.application.renderer.worker_pids)
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


async def test_case_39_a_bomb_is_refused_by_its_header_and_takes_no_memory(attacked: Served) -> None:
    """vLLM decoded it before any check."""
    await ask(attacked, GOOD)
    before = memory_of(attacked)
    status, code, message = await refusal(attacked, header_only(20_000, 20_000))
    assert (status, code) == (413, "media_too_large")
    assert "20000 x 20000" in message
    assert "8192 (max_image_side)" in message
    assert memory_of(attacked) - before < 32 * 2**20


async def test_case_40_what_others_take_eight_times_is_refused_and_what_is_taken_is_counted(attacked: Served) -> None:
    """13000 x 13000 is legal for Pillow and vLLM: 662 MB and 3 s each."""
    bombs = [refusal(attacked, header_only(13_000, 13_000)) for _ in range(8)]
    assert {(status, code) for status, code, _ in await asyncio.gather(*bombs)} == {(413, "media_too_large")}
    status, code, message = await refusal(attacked, *[header_only(4000, 4000)] * 5)
    assert (status, code) == (413, "media_too_large")
    assert "320000000 bytes decoded; the limit is 256000000 (max_decoded_bytes_per_request)" in message


async def test_case_40_pictures_in_decoding_do_not_add_up_over_requests() -> None:
    """Two workers, but bytes for one picture: with the first one held, the second one waits beside an idle worker."""
    limits = {"max_decoded_bytes_per_image": 64 * 48 * 4, "max_decoding_bytes": 64 * 48 * 4}
    async with gateway(media={"render_workers": 2, "render_timeout_s": 60, **limits}) as served:
        pids = served.application.renderer.worker_pids
        with held(pids):
            first = asyncio.create_task(ask(served, GOOD))
            await until_decoding(served, 64 * 48 * 4)
            second = asyncio.create_task(ask(served, encoded(scene("L"), "png")))
            await asyncio.sleep(0.3)
            assert served.application.renderer.decoding_bytes == 64 * 48 * 4
        for answer in await asyncio.gather(first, second):
            assert len(answer["opsin"]["images"]) == 1
        assert served.application.renderer.decoding_bytes == 0


async def test_case_41_a_refused_picture_is_in_no_log(attacked: Served, caplog: pytest.LogCaptureFixture) -> None:
    """SGLang logged 133 MB of base64, and took 110 s for it."""
    caplog.set_level(logging.DEBUG)
    bomb = header_only(12_000, 12_000)
    assert (await refusal(attacked, bomb))[1] == "media_too_large"
    assert (await refusal(attacked, GOOD[:500]))[1] == "image_truncated"
    for picture in (bomb, GOOD):
        assert data_url(picture)[30:60] not in caplog.text


async def test_case_42_no_decoder_limit_of_the_process_is_touched() -> None:
    """A model's constructor switched Pillow's own guard off, for everybody."""
    await python(
        """
from PIL import Image, ImageFile
before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
from opsin.media import worker
from opsin.media.types import ImageFormat
from opsin.media.warm_up import warm_up
warm_up(tuple(ImageFormat))
assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (89478485, False)
"""
    )


async def test_case_43_a_header_costs_nothing() -> None:
    """40000 x 40000 came in 4.7 MB and took 5.7 GB."""
    picture = header_only(16_000, 16_000) + bytes(2**20)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(MediaError):
        inspect(picture, MediaConfig(), "p")
    assert time.process_time() - started < 0.1
    assert tracemalloc.get_traced_memory()[1] < 2**18
    tracemalloc.stop()


async def test_case_44_the_longest_side_is_decoded_and_a_larger_picture_kills_nothing(attacked: Served) -> None:
    """stb_image was killed for memory, or failed an assertion at a side of 8000."""
    workers = attacked.application.renderer.worker_pids
    answer = await ask(attacked, flat(8192, 600))
    assert answer["opsin"]["images"] == [{"format": "png", "width": 8192, "height": 600}]
    assert (await refusal(attacked, header_only(20_000, 20_000)))[0] == 413
    assert await is_alive(attacked)
    assert attacked.application.renderer.worker_pids == workers


@pytest.mark.parametrize("kwargs", [{"mm_processor_kwargs": {"size": {"height": 9999}}}, {"media_io_kwargs": {"a": 1}}])
async def test_case_46_a_request_cannot_raise_a_limit(attacked: Served, kwargs: dict[str, object]) -> None:
    """404 bytes with max_pixels took 700 MB. What may be sent is bounded: tests/unit/vision/test_bounds.py."""
    status, code, message = await refusal(attacked, GOOD, **kwargs)
    assert (status, code) == (400, "unsupported_parameter")
    assert next(iter(kwargs)) in message


async def test_case_47_too_many_pictures_are_refused_before_any_is_decoded(attacked: Served) -> None:
    """33 pictures of 7200 tokens killed an engine."""
    with held(attacked.application.renderer.worker_pids):
        status, code, message = await refusal(attacked, *[encoded(scene(size=(8, 8)), "png")] * 40)
    assert (status, code) == (400, "too_many_images")
    assert "40 pictures; the limit is 16" in message


TENSOR = b"PK\x03\x04" + b"archive/data.pkl\x80\x02ctorch._utils\n_rebuild_sparse_tensor\n" + bytes(500)
"""As torch.save begins; never loaded by anything here."""


@pytest.mark.parametrize("part", ["image_embeds", "audio_embeds"])
async def test_case_49_no_tensor_is_ever_loaded(attacked: Served, part: str) -> None:
    """torch.load of a client's bytes corrupted memory."""
    embeds = {"type": part, part: data_url(TENSOR, "application/octet-stream").partition(",")[2]}
    status, answer = await post(attacked, content_body([embeds]))
    assert (status, answer["error"]["code"]) == (400, "unsupported_content_part")
    assert part in answer["error"]["message"]
    assert (await refusal(attacked, TENSOR))[:2] == (415, "unsupported_image_format")


async def test_case_50_embeddings_are_refused_whatever_their_shape(attacked: Served) -> None:
    """One of (1, 1) passed the check of its rank and crashed the engine."""
    embeds = {"type": "image_embeds", "image_embeds": {"image_embeds": [[0.0]], "shape": [1, 1]}}
    status, answer = await post(attacked, content_body([embeds]))
    assert (status, answer["error"]["code"]) == (400, "unsupported_content_part")
    assert await is_alive(attacked)


async def test_case_55_random_bytes_get_a_sentence_of_ours(attacked: Served) -> None:
    """``<_io.BytesIO object at 0x7f…>`` told where memory lies, the first half of an exploit."""
    status, code, message = await refusal(attacked, bytes(range(0x90, 0xA0)))
    assert (status, code) == (415, "unsupported_image_format")
    assert message.startswith("The data is of no known picture format; accepted are JPEG, PNG, WebP and GIF")


@pytest.mark.parametrize(
    ("data", "name"), [(b"SIMPLE  =                    T" + bytes(100), "FITS"), (b"8BPS\0\1" + bytes(100), "PSD")]
)
async def test_case_56_rare_decoders_are_not_there(attacked: Served, data: bytes, name: str) -> None:
    """Pillow opens 43 formats; a FITS bomb and a PSD overflow came through two that nobody had asked for."""
    status, code, message = await refusal(attacked, data)
    assert (status, code) == (415, "unsupported_image_format")
    assert message.startswith(f"{name} is not accepted; accepted are")


async def test_case_56_a_worker_loads_only_the_decoders_it_needs() -> None:
    loaded = await python(
        """
import sys
from opsin.media.config import ACCEPTED_BY_DEFAULT
from opsin.media import worker
from opsin.media.warm_up import warm_up
warm_up(ACCEPTED_BY_DEFAULT)
print(*sorted(name for name in sys.modules if name.endswith("ImagePlugin") or name == "pillow_heif"))
"""
    )
    needed = {f"PIL.{name}ImagePlugin" for name in ("Gif", "Jpeg", "Png", "WebP")}
    assert set(loaded.split()) - {"PIL.TiffImagePlugin"} == needed, "TIFF's directories are EXIF's, too"


async def test_case_61_pillows_own_bomb_error_is_an_answer_like_any_other() -> None:
    """DecompressionBombError is neither an OSError nor a ValueError: 500 elsewhere."""
    wide_open = {
        "max_image_pixels": PILLOW_MAX_PIXELS,
        "max_image_side": 65_535,
        "max_decoded_bytes_per_image": 2**30,
        "max_decoded_bytes_per_request": 2**30,
        "max_decoding_bytes": 2**30,
        "render_timeout_s": 60,
    }
    async with gateway(media=wide_open) as served:
        assert (await refusal(served, header_only(13_000, 13_000)))[0] == 422
        assert (await refusal(served, header_only(20_000, 20_000)))[:2] == (413, "media_too_large")
        assert await is_alive(served)


async def test_case_63_more_requests_than_there_are_places_are_told_to_come_back() -> None:
    """Parallel large pictures exhausted the processor."""
    async with gateway(gateway={"max_requests": 2}, media={"render_workers": 1, "render_timeout_s": 60}) as served:
        with held(served.application.renderer.worker_pids):
            other = encoded(scene("L"), "png")
            taken = [asyncio.create_task(ask(served, picture)) for picture in (GOOD, other)]
            await until_decoding(served, 2 * 64 * 48 * 4)
            async with served.http.post(f"{served.url}/v1/chat/completions", data=body_of([GOOD])) as response:
                assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert await is_alive(served)
        assert len(await asyncio.gather(*taken)) == 2


async def test_case_65_a_crafted_bmp_meets_no_decoder_unless_it_was_asked_for_and_then_a_sandboxed_one(
    attacked: Served,
) -> None:
    """imgproxy's BMP loader wrote beyond the heap."""
    crafted = [bmp(8, 8, 8, 0, bytes(64), colours=2**31 - 1), bmp(64, 64, 8, 1, b"\x00\x02\xff\xff" * 500)]
    crafted += [picture.data for picture in rare_bad_pictures() if picture.name.startswith("bmp")]
    for picture in crafted:
        assert (await refusal(attacked, picture))[:2] == (415, "unsupported_image_format")
    async with gateway(media={"formats": [ImageFormat.BMP], "render_timeout_s": 60}) as served:
        workers = served.application.renderer.worker_pids
        for picture in crafted:
            status, _ = await post(served, body_of([picture]))
            assert status in (200, 413, 422)
        await ask(served, encoded(scene(), "bmp"))
        assert served.application.renderer.worker_pids == workers


@pytest.mark.parametrize("head", [b"x-long: " + b"a" * 2**20, b"a: b\r\n" * 2**17], ids=["one header", "many"])
async def test_case_68_a_head_without_end_is_cut_off(head: bytes) -> None:
    """Unlimited headers, gathered before anybody asked for a key."""
    async with public_side() as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + head)
        with suppress(ConnectionError):  # what is still on its way meets a closed socket
            assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
            await reader.read()
        writer.close()
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
            assert response.status == 200


async def test_polyglots_are_what_their_first_bytes_say_and_decoded_as_nothing_else(attacked: Served) -> None:
    """No number: a file that is two formats must not be one for whoever checks it and another for who decodes it."""
    jpeg, gif = encoded(scene(), "jpeg"), encoded(scene("P"), "gif")
    polyglots = {"png": GOOD + jpeg, "jpeg": jpeg + GOOD + b"%PDF-1.7", "gif": gif + GOOD}
    for expected, data in polyglots.items():
        answer = await ask(attacked, data)
        assert answer["opsin"]["images"][0]["format"] == expected
    assert (await refusal(attacked, b"%PDF-1.7\n" + jpeg))[2].startswith("PDF is not accepted")
    assert (await refusal(attacked, GOOD[:8] + jpeg))[:2] in ((422, "image_truncated"), (422, "image_undecodable"))
