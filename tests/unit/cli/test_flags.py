from __future__ import annotations

import re
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


def test_several_upstreams_and_a_model_behind_them() -> None:
    for words in ("http://a http://b some/model", "http://a --upstream http://b --model some/model"):
        settings = _settings("--upstream", *words.split())
        assert settings.upstream is not None
        assert tuple(settings.upstream.servers) == ("http://a/v1", "http://b/v1")
        assert settings.model == "some/model"
    with pytest.raises(ConfigError, match="expected http://host:port"):
        _settings("--upstream", "http://a", "ftp://b")
    with pytest.raises(ConfigError, match="name each server once"):
        _settings("--upstream", "http://a", "http://a/v1")


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


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (("--model", "a/b"), "model", "a/b"),
        (("--dtype", "half"), "local.dtype", "float16"),
        (("--dtype", "float"), "local.dtype", "float32"),
        (("--max_model_len=99",), "max_model_len", 99),
        (("--max-model-len", "8k"), "max_model_len", 8000),
        (("--max-model-len", "8K"), "max_model_len", 8192),
        (("--max-model-len", "4.1k"), "max_model_len", 4100),
        (("--max-model-len", "1M"), "max_model_len", 2**20),
        (("--max-model-len", "auto"), "max_model_len", None),
        (("--max-model-len", "-1"), "max_model_len", None),
        (("--log-level", "INFO"), "log_level", "info"),
        (("--device-memory-utilization", "0.5"), "local.gpu_memory_utilization", 0.5),
        (("--limit-mm-per-prompt.image", "3"), "media.limit_mm_per_prompt.image", 3),
        (("--limit_mm_per_prompt.image=3",), "media.limit_mm_per_prompt.image", 3),
        (("-q", "awq"), "local.quantization", "awq"),
        (("--trust-remote-code",), "local.trust_remote_code", True),
        (("--limit-mm-per-prompt", '{"image": {"count": 2, "width": 512}}'), "media.limit_mm_per_prompt.image", 2),
        (("--allowed-origins", '["https://a.example", "*"]'), "gateway.allowed_origins", ("https://a.example", "*")),
        (("--allowed-origins", "*"), "gateway.allowed_origins", ("*",)),
        (("--allowed-media-domains", "a.b", "c.d"), "media.fetch.allowed_media_domains", ("a.b", "c.d")),
        (("--allowed-media-domains", '["a.b"]'), "media.fetch.allowed_media_domains", ("a.b",)),
        (("--allowed-media-ports", "8443", "9000"), "media.fetch.allowed_ports", (8443, 9000)),
        (("--allow-public-https",), "media.fetch.allow_public_https", True),
        (("--allowed-local-media-path", "/data"), "media.allowed_local_media_path", Path("/data")),
        (("--root-path", "/vlm/"), "gateway.root_path", "/vlm"),
        (("--chat-template", "{{ messages }}"), "chat_template", "{{ messages }}"),
        (("--hf-token", "hf_x", "--offline"), "hub.offline", True),
    ],
)
def test_spellings_and_forms(words: tuple[str, ...], path: str, value: object) -> None:
    found: object = _settings(*words)
    for step in path.split("."):
        found = getattr(found, step)
    assert found == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--limit-mm-per-prompt", "4"), "--limit-mm-per-prompt: should be a section, or an object as JSON"),
        (
            ("--limit-mm-per-prompt", "image=4,video=0"),
            '--limit-mm-per-prompt: should be a section, or an object as JSON: {"image": 4, "video": 0}',
        ),
        (("--max-model-len", "8X"), "--max-model-len: should be an integer; got '8X'"),
        (
            ("--limit-mm-per-prompt", '{"pictures": 4}'),
            "--limit-mm-per-prompt: there is no setting media.limit_mm_per_prompt.pictures",
        ),
        (("--allowed-origins", "https://a.example/path"), "--allowed-origins: should be origins such as"),
        (("--root-path", "vlm"), "--root-path: should start with /"),
        (("--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization: should be less than or equal to 1; got '1.5'"),
        (("--inject-delay", "queue"), "--inject-delay: should be STAGE=NUMBER"),
    ],
)
def test_wrong_values_are_named_as_they_were_typed(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _settings(*words)
    assert caught.value.message.startswith(message)


def test_an_unknown_flag_is_a_usage_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--max-modl-len=3"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --max-modl-len 3 (did you mean --max-model-len?)" in capsys.readouterr().err


def test_two_letters_in_the_wrong_order_are_a_typing_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--prot", "9000"])
    assert "unrecognized arguments: --prot 9000 (did you mean --port?)" in capsys.readouterr().err


def test_a_near_miss_that_goes_to_the_engine_is_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    vllm = ["serve", "org/model", "--engine", "vllm"]
    parse([*vllm, "--prot", "9000"])
    told = "--prot is no flag of opsin's and goes to the engine; did you mean --port?"
    assert told in capsys.readouterr().err
    parse([*vllm, "--brand-new-in-vllm", "3", "--kv-cache-dtype", "fp8"])
    assert not capsys.readouterr().err


def test_a_hint_is_for_typing_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--temperature", "3"], ["--enable-everything"]):
        with pytest.raises(SystemExit):
            parse(["serve", *words])
        assert "did you mean" not in capsys.readouterr().err


def test_several_keys_and_none_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = _settings("demo", "--api-key", "geheim-1", "geheim-2")
    assert [key.get_secret_value() for key in settings.gateway.api_key] == ["geheim-1", "geheim-2"]
    assert main(["serve", "--api-key", "geheim-1", "with space"]) == 1
    assert main(["config", "show", "--api-key", "geheim-1", "geheim-2"]) == 0
    told = capsys.readouterr()
    assert "--api-key: must be visible ASCII" in told.err
    assert "geheim" not in told.out + told.err


def test_flags_are_typed_in_full() -> None:
    with pytest.raises(SystemExit):
        parse(["serve", "--max-model", "3"])


def test_a_named_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[gateway]\nport = 7")
    assert _settings("--config", str(tmp_path / "mine.toml")).gateway.port == 7
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        _settings("--config", str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("command", ["serve", "ask", "tokens", "doctor", "doctor media"])
def test_help_explains_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    told = capsys.readouterr().out
    assert "--revision" in told
    assert not re.findall(r"^ +--\S+ JSON\n(?: +--|\n)", told, re.MULTILINE), "a flag without a word"
    assert "ImageFormat" not in told
