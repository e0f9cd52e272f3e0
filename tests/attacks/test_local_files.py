"""Files of the server's machine: section 2B of the public cases. Number 36 is about uploads; no route takes them."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from opsin.media.local_files import LocalFiles
from tests.attacks.conftest import Target
from tests.attacks.fetching import PNG
from tests.integration.gateways import Served, gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = b"what nobody may read"


@dataclass(frozen=True, slots=True)
class Shared:
    """A gateway that shares ``folder`` and nothing beside it."""

    served: Served
    folder: Path

    async def ask(self, url: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a request with one picture."""
        picture = {"type": "image_url", "image_url": {"url": url}}
        return await self.served.chat(messages=[{"role": "user", "content": [picture]}])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Shared]:
    """Pictures inside, a secret outside, and many ways between."""
    outside = tmp_path_factory.mktemp("outside")
    folder = outside / "shared"
    (folder / "deep" / "er").mkdir(parents=True)
    (outside / "secret.png").write_bytes(SECRET)
    (outside / "shared-not").mkdir()
    (outside / "shared-not" / "a.png").write_bytes(PNG)
    for name in ("a.png", "b#c.png", "b?c.png", "100%.png", "a b.png", "ä.png", "a\\b.png", "%2e%2e", "deep/er/a.png"):
        (folder / name).write_bytes(PNG)
    (folder / "b").write_bytes(SECRET)  # what '#' and '?' would leave of b#c.png and b?c.png
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "inner-link.png").symlink_to("a.png")
    (folder / "up").symlink_to("..")
    (folder / "down").symlink_to("deep")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        media = {"allowed_local_media_path": folder, "render_workers": 1}
        async with gateway(media=media) as served:
            yield Shared(served, folder)


def hostile(folder: Path) -> Iterator[str]:
    """URLs of files that may not be read, whether they are there or not."""
    outside = folder.parent
    yield f"file://{outside}/secret.png"
    yield f"file://{outside}/absent.png"
    yield f"file://{outside}/shared-not/a.png"
    yield f"file://{folder}/absent.png"
    yield f"file://{folder}"
    yield f"file://{folder}/"
    yield f"file://{folder}/deep"
    yield f"file://{folder}/deep/absent/a.png"
    yield f"file://{folder}/../secret.png"
    yield f"file://{folder}/deep/../../secret.png"
    yield f"file://{folder}/./a.png"
    yield f"file://{folder}//a.png"
    yield f"file://{folder}/%2e%2e/secret.png"
    yield f"file://{folder}/%2E%2E%2Fsecret.png"
    yield f"file://{folder}/..%2fsecret.png"
    yield f"file://{folder}/%252e%252e/secret.png"
    yield f"file://{folder}/a.png%00.txt"
    yield f"file://{folder}/a.png%00"
    yield f"file://{folder}/link.png"
    yield f"file://{folder}/inner-link.png"
    yield f"file://{folder}/up/secret.png"
    yield f"file://{folder}/down/er/a.png"
    yield f"file://{folder}/pipe"
    yield f"file://{folder}/s"
    yield f"file://{folder}/b#c.png"
    yield f"file://{folder}/b?c.png"
    yield f"file://{folder}/100%.png"
    yield f"file://{folder}/a%zz.png"
    yield f"file://{folder}/a.png/"
    yield f"file://{folder}/a.png/b"
    yield f"file://{folder}/{'a' * 300}"
    yield f"file://{folder}/{'a/' * 3000}b"
    yield f"file:{folder}/a.png"
    yield f"file:/{folder}/a.png"
    yield f"file://evil.example{folder}/a.png"
    yield f"file://127.0.0.1{folder}/a.png"
    yield f"file://localhost:80{folder}/a.png"
    yield f"file://user@localhost{folder}/a.png"
    yield f"file:///{str(folder).lstrip('/')}\\a.png"
    yield "file:///"
    yield "file://"
    yield "file:"
    yield "file:///proc/self/environ"
    yield "file:///proc/self/cwd/a.png"
    yield f"file:///proc/self/root{folder}/a.png"
    yield "file:///dev/zero"
    yield "file:///etc/hostname"
    yield "file:///etc/passwd"
    yield "file:///nope"
    yield "file://~/a.png"
    yield "file:///~root/a.png"
    yield "file:///%2e%2e/%2e%2e/etc/passwd"


@pytest.mark.parametrize(
    "url",
    ["/etc/hostname", "file:///etc/hostname", "file:///proc/self/environ", "FILE:///etc/passwd", "./a.png", "~/a"],
)
async def test_case_32_no_file_without_the_flag(as_it_comes: Target, url: str) -> None:
    code = await as_it_comes.refusal(url)
    assert code == ("media_url_blocked" if url.lower().startswith("file:") else "invalid_media_url")


async def test_case_33_one_refusal_whether_or_not_there_is_a_file(shared: Shared) -> None:
    answers: dict[str, list[str]] = {}
    for url in hostile(shared.folder):
        status, body = await shared.ask(url)
        error = body["error"]
        answers.setdefault(f"{status} {error['code']} {error['message']}", []).append(url)
        assert str(shared.folder) not in error["message"]
        assert "secret" not in error["message"]
    assert len(answers) == 1, answers
    assert next(iter(answers)).startswith("400 media_url_blocked")


@pytest.mark.parametrize("path", ["../../etc/passwd", "../secret.png", "..\\secret.png", "shared/../../secret.png"])
async def test_case_34_a_relative_path_is_no_address(shared: Shared, path: str) -> None:
    for url in (path, f"{shared.folder}/{path}"):
        status, body = await shared.ask(url)
        assert (status, body["error"]["code"]) == (400, "invalid_media_url")


async def test_case_35_a_path_that_exists_is_no_address(shared: Shared) -> None:
    status, body = await shared.ask(f"{shared.folder}/a.png")
    assert (status, body["error"]["code"]) == (400, "invalid_media_url")


@pytest.mark.parametrize(
    "name",
    ["a.png", "deep/er/a.png", "b%23c.png", "b%3Fc.png", "b%3fc.png", "100%25.png", "a%20b.png", "a b.png",
     "%C3%A4.png", "ä.png", "a%5Cb.png", "%252e%252e", "%61.png", "deep%2Fer%2Fa.png"],
)  # fmt: skip
async def test_case_38_the_file_that_is_opened_is_the_one_that_is_named(shared: Shared, name: str) -> None:
    status, body = await shared.ask(f"file://{shared.folder}/{name}")
    assert status == 200, body
    assert LocalFiles(shared.folder).read(f"file://localhost{shared.folder}/{name}", 2**20) == PNG


async def test_a_folder_that_is_named_through_a_link(shared: Shared, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(shared.folder)
    files = LocalFiles(tmp_path / "named")
    assert files.read(f"file://{tmp_path}/named/a.png", 2**20) == PNG
    assert files.read(f"file://{shared.folder}/a.png", 2**20) == PNG


async def test_a_file_that_is_too_large_is_read_no_further(shared: Shared) -> None:
    with (shared.folder / "large.png").open("wb") as file:
        file.truncate(2**40)
    status, body = await shared.ask(f"file://{shared.folder}/large.png")
    assert (status, body["error"]["code"]) == (413, "media_too_large")
