"""Every picture of the corpus through loader and pool: good ones in, bad ones out with their status and code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import cycle

import pytest
import pytest_asyncio

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import MediaError, UnsupportedMediaType
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader
from opsin.media.pool import RenderPool
from opsin.media.types import ImageFormat, RenderedPicture
from tests.corpus.pictures import OPT_IN, BadPicture, GoodPicture, bad_pictures, data_url, good_pictures
from tests.corpus.rare import rare_bad_pictures, rare_good_pictures
from tests.corpus.recipes import CUT

CONFIG = MediaConfig(render_timeout_s=60, formats=tuple(ImageFormat))
GOOD = (*good_pictures(), *rare_good_pictures())
BAD = tuple(bad for bad in bad_pictures() if bad.name not in OPT_IN) + rare_bad_pictures()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[RenderPool]:
    pool = RenderPool(CONFIG)
    await pool.start()
    yield pool
    await pool.close()


async def sent(pool: RenderPool, data: bytes) -> RenderedPicture:
    (media,) = await MediaLoader(CONFIG).load([MediaRef(data_url(data), Detail.AUTO, "here")])
    await pool.verify(media)
    return await pool.render(media, CUT)


@pytest.mark.parametrize("picture", GOOD, ids=lambda picture: picture.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_good_pictures_are_accepted(pool: RenderPool, picture: GoodPicture) -> None:
    rendered = await sent(pool, picture.data)
    assert (rendered.num_tiles, len(rendered.pixels)) == (5, 5 * 4 * 4 * 3)


@pytest.mark.asyncio(loop_scope="module")
async def test_bad_pictures_are_refused_and_good_ones_between_them_are_not(pool: RenderPool) -> None:
    good = cycle(GOOD)
    workers = pool.worker_pids
    outcomes: dict[str, tuple[int, str, str | None] | None] = {}
    for number, picture in enumerate(BAD):
        outcomes[picture.name] = await refusal(pool, picture)
        if number % 10 == 0:
            await sent(pool, next(good).data)
    assert outcomes == {bad.name: (bad.status, bad.code, "here") for bad in BAD}
    assert pool.worker_pids == workers, "a bad picture killed a worker"


@pytest.mark.asyncio(loop_scope="module")
async def test_formats_that_were_not_asked_for_are_refused_by_name(pool: RenderPool) -> None:
    config = MediaConfig()
    for picture in rare_good_pictures():
        name = picture.name.split()[0].upper()
        with pytest.raises(UnsupportedMediaType, match=rf"^{name} is not accepted by this server; .*media\.formats"):
            await MediaLoader(config).load([MediaRef(data_url(picture.data), Detail.AUTO, "here")])


async def refusal(pool: RenderPool, picture: BadPicture) -> tuple[int, str, str | None] | None:
    try:
        await sent(pool, picture.data)
    except MediaError as error:
        assert not any(leak in error.message for leak in ("0x", "/", "PIL", "Error"))
        return error.status, error.code, error.param
    return None


def test_names_are_unique() -> None:
    names = [picture.name for picture in BAD]
    assert len(set(names)) == len(names) >= 30
