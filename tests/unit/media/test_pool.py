"""The pool with real workers that are stopped, killed and abandoned."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest
import uvloop
from PIL import Image

from opsin.core.errors import ConfigError, MediaError, MediaUndecodable, Overloaded
from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.media.render import render as render_here
from opsin.media.types import ImageFormat, MediaBytes, RenderMode
from opsin.vision.plan import Size
from opsin.vision.recipe import Filter, RenderRecipe, View, middle, resized, whole
from tests.corpus.pictures import encoded, scene
from tests.corpus.rare import rare_bad_pictures

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux limits")


@asynccontextmanager
async def running(**config: Any) -> AsyncGenerator[RenderPool]:
    pool = RenderPool(MediaConfig.model_validate({"render_workers": 1, "render_timeout_s": 60, **config}))
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def picture(width: int = 8, height: int = 8) -> MediaBytes:
    return inspect(encoded(scene(size=(width, height)), "png"), MediaConfig(), f"{width}x{height}")


async def render(pool: RenderPool, media: MediaBytes) -> bytes:
    size = media.header.upright
    return (await pool.render(media, whole(size))).pixels


def expected(media: MediaBytes) -> bytes:
    return scene(size=(media.header.size.width, media.header.size.height)).tobytes()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the kernel's process table has no events
            await asyncio.sleep(0.01)


async def is_running_task(pool: RenderPool, task: asyncio.Task[bytes]) -> None:
    """Returns when the task has had time to reach its (stopped) worker."""
    await asyncio.sleep(0.1)
    assert not task.done()
    assert pool.worker_pids


async def test_many_pictures_at_once_each_get_their_own_pixels() -> None:
    media = [picture(width, height) for width in range(1, 9) for height in range(1, 9)]
    async with running(render_workers=2) as pool:
        assert len(set(pool.worker_pids)) == 2
        assert await asyncio.gather(*(render(pool, one) for one in media)) == [expected(one) for one in media]


async def test_a_crash_is_the_error_of_one_picture_only() -> None:
    async with running(render_workers=2) as pool:
        first, second = pool.worker_pids
        os.kill(first, signal.SIGSTOP)
        # Two pictures take both workers; the one that does not come back lies in the stopped one.
        tasks = [asyncio.create_task(render(pool, picture())) for _ in range(2)]
        _, (victim,) = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        neighbours = [asyncio.create_task(render(pool, picture(number, 5))) for number in range(1, 5)]
        os.kill(first, signal.SIGSEGV)
        os.kill(first, signal.SIGCONT)
        with pytest.raises(MediaUndecodable) as caught:
            await victim
        assert (caught.value.code, caught.value.param) == ("image_undecodable", "8x8")
        assert [len(pixels) for pixels in await asyncio.gather(*neighbours)] == [15, 30, 45, 60]
        await until(lambda: len(pool.worker_pids) == 2 and first not in pool.worker_pids)
        assert second in pool.worker_pids


async def test_a_worker_that_was_killed_is_not_the_fault_of_its_picture() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGSTOP)
        victim = asyncio.create_task(render(pool, picture()))
        await is_running_task(pool, victim)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Overloaded) as caught:
            await victim
        assert (caught.value.code, caught.value.retryable) == ("render_worker_killed", True)
        assert await render(pool, picture()) == expected(picture())


async def test_a_worker_that_died_while_idle_is_nobodys_fault() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(pid))
        assert await render(pool, picture()) == expected(picture())
        assert pool.worker_pids != (pid,)


async def test_a_hung_worker_is_killed_at_the_deadline() -> None:
    async with running(render_timeout_s=0.5) as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(MediaUndecodable) as caught:
            await render(pool, picture())
        assert 0.4 < time.monotonic() - start < 5
        assert (caught.value.status, caught.value.code) == (422, "image_decode_timeout")
        await until(lambda: pool.worker_pids not in ((), (pid,)))
        assert not psutil.pid_exists(pid)


async def test_a_cancelled_request_leaves_no_answer_behind() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGSTOP)
        abandoned = asyncio.create_task(render(pool, picture(3, 3)))
        await is_running_task(pool, abandoned)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        assert await render(pool, picture(3, 3)) == expected(picture(3, 3))
        assert pool.worker_pids != (pid,)


async def test_requests_are_served_in_the_order_of_waiting() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGSTOP)
        served: list[int] = []

        async def request(number: int) -> None:
            await render(pool, picture())
            served.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(6)]
        await asyncio.sleep(0.1)
        tasks[2].cancel()
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [0, 1, 3, 4, 5]
        assert pool.worker_pids == (pid,)


async def test_workers_are_replaced_after_their_share() -> None:
    async with running(worker_max_tasks=2) as pool:
        (pid,) = pool.worker_pids
        for _ in range(2):
            await render(pool, picture())
        assert await render(pool, picture()) == expected(picture())
        assert pool.worker_pids != (pid,)


async def test_pictures_wait_for_bytes_beside_an_idle_worker() -> None:
    one = picture(8, 8)
    limits = {"max_decoded_bytes_per_image": 400, "max_decoding_bytes": 400}
    async with running(render_workers=2, **limits) as pool:
        pids = pool.worker_pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        first, second, third = (asyncio.create_task(render(pool, one)) for _ in range(3))
        await is_running_task(pool, first)
        assert pool.decoding_bytes == 8 * 8 * 4
        second.cancel()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert await asyncio.gather(first, third) == [expected(one)] * 2
        assert pool.decoding_bytes == 0
        assert pool.worker_pids == pids


async def test_what_decoders_print_is_in_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    """libtiff quotes a damaged file on standard error, Pillow logs and warns."""
    damaged = [bad.data for bad in rare_bad_pictures() if bad.name.startswith("tiff")]
    formats = tuple(ImageFormat)
    async with running(formats=formats) as pool:
        for data in damaged:
            with suppress(MediaError):
                await pool.verify(inspect(data, MediaConfig(formats=formats), "here"))
    assert capfd.readouterr().err == ""


async def test_a_worker_that_makes_a_forbidden_call_is_told_from_one_that_crashes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SIGSYS from outside stands for the kernel's."""
    for number, told in ((signal.SIGSYS, "made a forbidden system call"), (signal.SIGABRT, "died by signal 6")):
        async with running() as pool:
            (pid,) = pool.worker_pids
            os.kill(pid, signal.SIGSTOP)
            victim = asyncio.create_task(render(pool, picture()))
            await is_running_task(pool, victim)
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
            with pytest.raises(MediaUndecodable) as caught:
                await victim
            assert caught.value.code == "image_undecodable"
        assert told in caplog.text


async def test_processor_time_beyond_the_limit_is_too_much_time() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGSTOP)
        victim = asyncio.create_task(render(pool, picture()))
        await is_running_task(pool, victim)
        os.kill(pid, signal.SIGXCPU)
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(MediaUndecodable) as caught:
            await victim
        assert caught.value.code == "image_decode_timeout"


async def test_verify_decodes_and_answers_nothing() -> None:
    noise = encoded(scene(), "jpeg")
    cut = inspect(noise[:-50], MediaConfig(), "here")
    async with running() as pool:
        await pool.verify(inspect(noise, MediaConfig(), "here"))
        with pytest.raises(MediaUndecodable) as caught:
            await pool.verify(cut)
    assert (caught.value.code, caught.value.param) == ("image_truncated", "here")


async def test_a_recipe_that_does_not_fit_is_a_bug_and_no_bad_picture() -> None:
    async with running() as pool:
        with pytest.raises(ValueError, match="gives no tiles"):
            await pool.render(picture(), RenderRecipe(Size(4, 4), (View((), 2, 1),)))


@linux_only
async def test_a_recipe_may_make_far_more_pixels_than_the_picture_has() -> None:
    """LLaVA's of a picture of 100 : 1, which is 11 Mpx before its middle is taken."""
    size = Size(4000, 40)
    thin = inspect(encoded(Image.new("RGB", (4000, 40), (9, 8, 7)), "png"), MediaConfig(), "here")
    recipe = middle(size, 336, Size(336, 336), Filter.BICUBIC)
    async with running() as pool:
        rendered = await pool.render(thin, recipe)
    assert rendered.pixels == bytes((9, 8, 7)) * 336 * 336


async def test_fast_workers_decode_at_a_fraction() -> None:
    noise = encoded(scene(size=(640, 480)), "jpeg")
    recipe = resized(Size(160, 120), Filter.LANCZOS)
    media = inspect(noise, MediaConfig(), "here")
    pixels: dict[RenderMode, bytes] = {}
    for mode in RenderMode:
        async with running(render_mode=mode) as pool:
            pixels[mode] = (await pool.render(media, recipe)).pixels
        assert pixels[mode] == render_here(noise, media.header, recipe, mode)
    assert pixels[RenderMode.EXACT] != pixels[RenderMode.FAST]


@linux_only
async def test_memory_is_limited() -> None:
    flat = encoded(Image.new("RGB", (4000, 4000)), "jpeg", quality=10)
    async with running(worker_memory_bytes=2**24) as pool:
        pids = pool.worker_pids
        with pytest.raises(MediaUndecodable) as caught:
            await pool.verify(inspect(flat, MediaConfig(), "here"))
        assert caught.value.code == "image_decode_memory"
        assert await render(pool, picture()) == expected(picture())
        assert pool.worker_pids == pids


@linux_only
async def test_workers_see_no_secrets_and_leave_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSIN_API_KEY", "secret")
    async with running() as pool:
        process = psutil.Process(pool.worker_pids[0])
        assert set(process.environ()) <= {"PYTHONPATH", "LD_LIBRARY_PATH", "LC_CTYPE"}
        assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert os.getsid(process.pid) == process.pid


async def test_termination_signals_do_not_end_workers() -> None:
    async with running() as pool:
        (pid,) = pool.worker_pids
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert await render(pool, picture()) == expected(picture())
        assert pool.worker_pids == (pid,)


def open_descriptors() -> int:
    return psutil.Process().num_fds()


async def any_process() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


async def exercise() -> tuple[int, ...]:
    """Every way of ending a worker; returns all pids that were seen."""
    async with running(render_workers=2, render_timeout_s=0.5, worker_max_tasks=3) as pool:
        seen = set(pool.worker_pids)
        os.kill(pool.worker_pids[0], signal.SIGSTOP)
        await asyncio.gather(*(render(pool, picture()) for _ in range(8)), return_exceptions=True)
        seen |= set(pool.worker_pids)
        task = asyncio.create_task(render(pool, picture()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return (*seen, *pool.worker_pids)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_nothing_is_left_after_close(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(any_process())  # libuv opens a pipe for signals once per process and keeps it
    before = open_descriptors()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        pids = runner.run(exercise())
    assert len(pids) >= 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert open_descriptors() == before


async def test_close_ends_running_and_waiting_requests() -> None:
    pool = RenderPool(MediaConfig(render_workers=1))
    await pool.start()
    (pid,) = pool.worker_pids
    os.kill(pid, signal.SIGSTOP)
    requests = [asyncio.create_task(render(pool, picture())) for _ in range(3)]
    await asyncio.sleep(0.1)
    await pool.close()
    await pool.close()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 3
    with pytest.raises(Overloaded):
        await render(pool, picture())
    assert not psutil.pid_exists(pid)


async def test_a_machine_that_cannot_start_workers_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    before = open_descriptors()
    with pytest.raises(ConfigError):
        await RenderPool(MediaConfig()).start()
    assert open_descriptors() == before


PARENT = """
import asyncio
from opsin.media.config import MediaConfig
from opsin.media.pool import RenderPool

async def main():
    pool = RenderPool(MediaConfig())
    await pool.start()
    print(*pool.worker_pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_workers_die_with_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    asyncio.run(until(lambda: not any(psutil.pid_exists(pid) for pid in pids)))


def test_the_worker_imports_neither_pydantic_nor_numpy() -> None:
    """It starts once per crash and per share of tasks, so what it imports is latency."""
    code = "import sys, opsin.media.worker; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "numpy", "asyncio", "torch"} & set(modules)
