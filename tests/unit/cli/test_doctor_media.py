"""``opsin doctor media``: the policy in effect, every vector, and an exit status that scripts can use."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.main import main
from opsin.media.config import MediaConfig
from opsin.settings import Settings
from opsin.sources import settings_of

filters_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> dict[str, list[dict[str, Any]]]:
    assert main(["doctor", "media", "--json", *words]) == status
    return json.loads(capsys.readouterr().out)


@filters_only
def test_the_policy_and_every_vector_hold_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, status=0)
    policy = {row["setting"]: row for row in found["policy"]}
    assert set(policy) == {one.path for one in settings_of(Settings) if one.path.startswith("media.")} | {"sandbox"}
    assert policy["media.max_image_side"]["value"] == MediaConfig().max_image_side
    assert policy["sandbox"]["value"] in ("seccomp", "namespaces")
    assert all(vector["passed"] and vector["is_run"] for vector in found["vectors"])
    got = {vector["vector"]: vector["got"] for vector in found["vectors"]}
    assert got["worker, a whole JPEG"] == "decoded"
    assert got["worker, taken over, opens a socket"] == "refused"
    assert got["text, every special token of the model"] == "text"


@filters_only
def test_an_opened_policy_is_a_line_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "media", "--allowed-private-networks", "127.0.0.0/8"]) == 1
    lines = capsys.readouterr().out.splitlines()
    problems = [line for line in lines if line.startswith("PROBLEM")]
    allowed = "expected media_url_blocked, got allowed by your settings: media.fetch.allowed_private_networks"
    assert problems == [
        f"PROBLEM url 'http://127.0.0.1/': {allowed}",
        f"PROBLEM url 'http://[::ffff:127.0.0.1]/': {allowed}",
    ]
    assert "ok      url 'http://[::1]/': expected media_url_blocked, got media_url_blocked" in lines


@filters_only
def test_what_cannot_be_run_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (("--upstream", "http://127.0.0.1:9"), ("owner/name", "--download-dir", str(tmp_path))):
        vector = told(capsys, *words, status=0)["vectors"][-1]
        assert not vector["is_run"]
        assert vector["got"].startswith("not run: ")


@filters_only
def test_a_picture_that_does_not_get_through_is_a_failure(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "opsin.toml").write_text("[media]\nmax_image_bytes = 10")
    found = {vector["vector"]: vector for vector in told(capsys, status=1)["vectors"]}
    assert found["worker, a whole JPEG"]["got"] == "media_too_large"


def test_wrong_settings_have_no_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "media", "--allowed-media-domains", "*"]) == 1
    assert "--allowed-media-domains: should be a host" in capsys.readouterr().err
