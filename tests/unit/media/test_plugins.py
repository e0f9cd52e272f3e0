from __future__ import annotations

import sys

import pillow_heif
import pytest
from PIL import AvifImagePlugin

from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.media.plugins import is_installed, plugin
from opsin.media.pool import RenderPool
from opsin.media.types import ImageFormat
from tests.corpus.golden import golden_cases
from tests.corpus.golden_rare import rare_cases
from tests.corpus.pictures import encoded, scene
from tests.corpus.rare import small_heic


@pytest.mark.parametrize("image_format", ImageFormat)
async def test_a_decoder_works_where_it_is_the_only_one(image_format: ImageFormat) -> None:
    """Nothing that another one loaded, or was allowed, helps it: only HEIC may start threads."""
    config = MediaConfig(formats=(image_format,), render_workers=1, render_timeout_s=60)
    large = small_heic() if image_format is ImageFormat.HEIC else encoded(scene(size=(700, 500)), image_format)
    cases = [case for case in (*golden_cases(), *rare_cases()) if case.name.split()[0] == image_format]
    pool = RenderPool(config)
    await pool.start()
    try:
        workers = pool.worker_pids
        for data in (large, *(case.build(6 if case.oriented else 1) for case in cases)):
            await pool.verify(inspect(data, config, "here"))
        assert pool.worker_pids == workers
    finally:
        await pool.close()


def test_decoders_use_one_thread() -> None:
    for image_format in ImageFormat:
        plugin(image_format)
    assert AvifImagePlugin.DEFAULT_MAX_THREADS == 1
    assert pillow_heif.options.DECODE_THREADS == 1


def test_a_decoder_is_missing_where_its_module_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_installed(image_format) for image_format in ImageFormat)
    for missing, image_format in (("pillow_heif", ImageFormat.HEIC), ("PIL._avif", ImageFormat.AVIF)):
        monkeypatch.setitem(sys.modules, missing, None)
        assert {one for one in ImageFormat if not is_installed(one)} == {image_format}
        monkeypatch.undo()
