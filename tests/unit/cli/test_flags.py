from __future__ import annotations

from pathlib import Path

import pytest

from opsin.cli.flags import read
from opsin.cli.main import main, parse
from opsin.core.errors import ConfigError
from opsin.core.stages import Stage
from opsin.settings import EngineKind, Settings, load_settings


def _settings(*words: str) -> Settings:
    return read(parse(["serve", *words])).checked()


def test_vllms_words_mean_the_same() -> None:
    settings = _settings(
        "some/model", "--revision", "abc", "--host", "0.0.0.0", "--port", "9000", "--max-model-len", "2048",
        "--limit-mm-per-prompt", '{"image": 4, "video": 0}', "--dtype", "bfloat16", "--max-num-seqs", "8",
        "--served-model-name", "a", "b", "--api-key", "k",
    )  # fmt: skip
    assert (settings.model, settings.revision, settings.max_model_len) == ("some/model", "abc", 2048)
    assert (settings.gateway.host, settings.gateway.port) == ("0.0.0.0", 9000)
    assert settings.media.limit_mm_per_prompt.image == 4
    assert (settings.local.dtype, settings.local.max_num_seqs) == ("bfloat16", 8)
    assert settings.served_model_name == ("a", "b")
    assert "k" not in repr(settings.gateway.api_key)


def test_an_upstream_is_an_engine() -> None:
    settings = _settings("--upstream", "http://127.0.0.1:1")
    assert settings.engine is EngineKind.UPSTREAM
    assert settings.upstream is not None


def test_delays_name_stages() -> None:
    assert _settings("--inject-delay", "queue=1,prefill=0.5").inject_delay_s == {Stage.QUEUE: 1.0, Stage.PREFILL: 0.5}
    with pytest.raises(ConfigError, match="--inject-delay: should be 'media_load'"):
        _settings("--inject-delay", "lunch=1")


def test_flags_win_over_environment_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(str(tmp_path))
    (tmp_path / "opsin.toml").write_text('log_level = "error"\n[gateway]\nport = 1\nmax_requests = 7\n')
    monkeypatch.setenv("OPSIN_GATEWAY__PORT", "2")
    assert _settings().gateway.port == 2
    assert _settings("--port", "3").gateway.port == 3
    assert _settings("--port", "3").gateway.max_requests == 7
    assert _settings().log_level == "error"


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"gateway": {"port": -1, "prot": 3}, "media": {"max_aspect": 0}})
    for name in ("gateway.port", "gateway.prot", "media.max_aspect"):
        assert name in caught.value.message


def test_exposure_without_a_key_refuses_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", "fake", "--host", "0.0.0.0"]) == 1
    message = capsys.readouterr().err
    assert "--api-key" in message
    assert "--no-auth" in message
