"""A worker's answers are a stranger's data: what does not fit its task ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsin.media.config import MediaConfig
from opsin.media.header import read_header
from opsin.media.messages import ANSWER_OVERHEAD_BYTES, Answer, Done, RenderTask
from opsin.media.process import Job, WorkerLost, WorkerProcess
from tests.corpus.pictures import encoded, scene

CONFIG = MediaConfig()
DATA = encoded(scene(), "png")


def verifying(fits: Callable[[Answer], bool], max_bytes: int = ANSWER_OVERHEAD_BYTES) -> Job:
    task = RenderTask(len(DATA), read_header(DATA, None, CONFIG.formats), None)
    return Job(task, DATA, max_bytes, fits, "png", None)


@pytest.mark.parametrize(
    "unfit", [verifying(lambda _: False), verifying(lambda _: True, max_bytes=1)], ids=["another answer", "too long"]
)
async def test_an_answer_that_does_not_fit_its_task_ends_the_worker(unfit: Job) -> None:
    worker = await WorkerProcess.spawn(CONFIG)
    try:
        assert isinstance(await worker.run(verifying(lambda answer: isinstance(answer, Done))), Done)
        with pytest.raises(WorkerLost):
            await worker.run(unfit)
        assert worker.is_spent(CONFIG.worker_max_tasks)
    finally:
        await worker.end()
