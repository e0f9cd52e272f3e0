from __future__ import annotations

from pathlib import Path

import pytest

from opsin.cli.pictures import load_pictures, look_at
from opsin.core.errors import MediaError, MediaSourceForbidden
from opsin.media.config import MediaConfig
from opsin.media.fetch_config import FetchConfig
from tests.corpus.pictures import data_url, encoded, scene

PNG = encoded(scene(), "png")


def test_files_and_urls_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    config = MediaConfig(allowed_local_media_path=tmp_path)
    words = [str(tmp_path / "a.png"), data_url(PNG), f"file://{tmp_path}/a.png"]
    assert [media.data for media in load_pictures(words, config)] == [PNG] * 3


@pytest.mark.parametrize(("word", "flag"), [("https://a.example/x", "domains"), ("file:///etc/passwd", "local-media")])
def test_a_url_is_held_to_the_settings(word: str, flag: str) -> None:
    with pytest.raises(MediaSourceForbidden, match=flag):
        load_pictures([word], MediaConfig())


def test_whoever_types_a_url_is_told_why_its_host_has_no_address() -> None:
    inside = FetchConfig(allowed_media_domains=("127.0.0.1",), allow_ip_literals=True)
    with pytest.raises(MediaSourceForbidden, match="not public; --allowed-private-networks opens its network"):
        load_pictures(["https://127.0.0.1/a.png"], MediaConfig(fetch=inside))
    nowhere = FetchConfig(allowed_media_domains=("no-such-host.invalid",))
    with pytest.raises(MediaSourceForbidden, match="does not resolve"):
        look_at(["https://no-such-host.invalid/a.png"], MediaConfig(fetch=nowhere))


def test_a_missing_file() -> None:
    with pytest.raises(MediaError, match=r"absent\.png: cannot be read: No such file"):
        load_pictures(["absent.png"], MediaConfig())
