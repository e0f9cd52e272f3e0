"""What the attacks under ``tests/attacks`` do not reach."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from opsin.core.errors import MediaSourceForbidden
from opsin.media.local_files import LocalFiles


def test_at_most_one_byte_more_than_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    files = LocalFiles(tmp_path)
    assert files.read(f"file://{tmp_path}/a", 5) == b"12345"
    assert files.read(f"file://{tmp_path}/a", 3) == b"1234"


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a").write_bytes(b"1")
    files = LocalFiles(tmp_path)
    before = psutil.Process().num_fds()
    for _ in range(3):
        files.read(f"file://{tmp_path}/deep/er/a", 1)
        for path in ("deep/er/absent", "deep/er", "deep/absent/a", "deep/er/a/b", "../a"):
            with pytest.raises(MediaSourceForbidden):
                files.read(f"file://{tmp_path}/{path}", 1)
    assert psutil.Process().num_fds() == before


def test_a_folder_that_is_gone_is_refused_like_anything_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    files = LocalFiles(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    with pytest.raises(MediaSourceForbidden, match="not available"):
        files.read(f"file://{tmp_path}/folder/a", 1)


def test_a_file_that_becomes_a_link_between_two_looks(tmp_path: Path) -> None:
    """A race, and lost by whoever asks first and follows afterwards: within a few hundred tries, out of these many."""
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "honest").write_bytes(b"honest")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "a").write_bytes(b"honest")
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            for source in ("link", "honest"):
                os.link(folder / source, folder / "next", follow_symlinks=False)
                (folder / "next").replace(folder / "a")

    swapping = threading.Thread(target=swap)
    swapping.start()
    files, found = LocalFiles(folder), set[bytes]()
    for _ in range(5000):
        with suppress(MediaSourceForbidden):
            found.add(files.read(f"file://{folder}/a", 100))
    stopped.set()
    swapping.join()
    assert found == {b"honest"}


def test_what_is_no_file_is_not_even_opened(tmp_path: Path) -> None:
    """Opening a device can do something; opening a pipe lets its writer go on."""
    os.mkfifo(tmp_path / "pipe")
    opened = threading.Event()

    def write() -> None:
        os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
        opened.set()

    writing = threading.Thread(target=write)
    writing.start()
    for _ in range(20):  # by one of these the writer waits for a reader
        with pytest.raises(MediaSourceForbidden):
            LocalFiles(tmp_path).read(f"file://{tmp_path}/pipe", 1)
        assert not opened.wait(0.01)
    os.close(os.open(tmp_path / "pipe", os.O_RDONLY))
    writing.join()
