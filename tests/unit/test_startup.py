"""All that forbids a start, at once; and what is only worth a word."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from opsin import startup
from opsin.cli.flags import read
from opsin.cli.main import parse
from opsin.core.errors import ConfigError
from opsin.core.problems import raise_all
from opsin.models.card import load_card
from opsin.models.hub import resolve
from opsin.settings import Configuration, EngineKind, Settings, configuration
from opsin.sources import Given, flatten
from opsin.vllm_flags import Stated
from tests.certificates import certificate


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(**values: Any) -> Configuration:
    return configuration({path: Given(value, "code", path) for path, value in flatten(Settings, values)})


def problems(**values: Any) -> list[str]:
    return [problem.text for problem in startup.problems(configured(**values))]


def notices(**values: Any) -> list[str]:
    return list(startup.notices(configured(**values)))


def test_the_defaults_can_start() -> None:
    assert problems() == []
    assert notices() == []


def test_everything_at_once(tmp_path: Path) -> None:
    texts = problems(
        model="./absent",
        chat_template="{% for %}",
        gateway={"host": "0.0.0.0", "port": "x", "ssl_keyfile": "key.pem"},
        media={"limit_mm_per_prompt": {"video": 1, "audio": 2}},
    )
    expected = (
        "gateway.port: should be an integer; got 'x'",
        "media.limit_mm_per_prompt.audio: audio is not served",
        "media.limit_mm_per_prompt.video: videos are not served yet",
        "--host 0.0.0.0 can be reached from other machines",
        "--ssl-keyfile: a key alone serves nothing; add --ssl-certfile",
        "chat template: syntax error in line 1",
        "model ./absent: there is no such folder",
    )
    assert len(texts) == len(expected)
    for text, start in zip(texts, expected, strict=True):
        assert text.startswith(start)


def test_a_triton_is_chosen_by_its_address_and_needs_one() -> None:
    found = configured(upstream={"url": "grpc://h:8001"}, chat_template="{{ messages }}")
    assert found.settings.engine is EngineKind.TRITON
    assert list(startup.problems(found)) == []
    assert list(startup.notices(found)) == []  # its prompts are written here, so the template has an effect
    assert problems(engine="triton", upstream={"url": "http://h"}) == [
        "engine triton: --upstream grpc://HOST:PORT is missing"
    ]
    (text,) = problems(engine="upstream", upstream={"url": "grpc://h:8001"})
    assert text.startswith("engine upstream: grpc:// is a Triton's")


def test_an_api_needs_its_library_a_provider_and_a_key() -> None:
    texts = problems(engine="api")
    expected = [
        *(["engine api needs litellm: pip install 'opsin[apis]'"] if find_spec("litellm") is None else []),
        "engine api: the model is PROVIDER/NAME, of openai, anthropic, gemini; got demo",
        "engine api needs the provider's key: OPSIN_API__KEY, or key under [api] in opsin.toml",
    ]
    assert texts == expected


def test_one_message_has_a_line_for_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        raise_all(startup.problems(configured(model="./absent", engine="nothing", log_level="loud")))
    assert caught.value.message.splitlines() == [
        "2 problems to solve before a start:",
        "  - engine: should be 'local', 'upstream', 'fake', 'vllm', 'sglang', 'llama.cpp', 'ramalama', 'triton' or "
        "'api'; got 'nothing'",
        "  - log_level: should be 'debug', 'info', 'warning' or 'error'; got 'loud'",
    ]  # nothing about the model, because nobody knows whether it would be used


def test_what_rests_on_a_wrong_value_is_not_judged() -> None:
    """A key with a space is one problem, not also a server without a key."""
    assert len(problems(gateway={"host": "0.0.0.0", "api_key": "two words"})) == 1
    assert len(problems(engine="upstream", upstream={"url": "ftp://x"})) == 1


def test_an_upstream_needs_its_address() -> None:
    assert problems(engine="upstream") == ["engine upstream: --upstream URL is missing"]


def test_an_upstreams_tokenizer_has_to_be_one(tmp_path: Path) -> None:
    upstream = {"url": "http://127.0.0.1:1", "tokenizer": str(tmp_path / "none")}
    assert problems(engine="upstream", upstream=upstream) == [f"model {tmp_path}/none: there is no such folder"]
    (problem,) = problems(engine="upstream", upstream={**upstream, "tokenizer": str(tmp_path)})
    assert problem.startswith("no special tokens in tokenizer.json")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"content": "<s>", "special": True}]}))
    assert problems(engine="upstream", upstream={**upstream, "tokenizer": str(tmp_path)}) == []


def test_only_the_local_engine_refuses_what_it_cannot_do() -> None:
    values: dict[str, Any] = {"chat_template": "{% for %}", "local": {"num_threads": 1}}
    vllm = (Stated.of_keyword("tensor_parallel_size", 8), Stated.of_keyword("enforce_eager", True))
    found = replace(configured(upstream={"url": "http://127.0.0.1:1"}, **values), vllm=vllm)
    assert startup.problems(found) == []
    assert list(startup.notices(found)) == [
        "no effect with engine upstream, which runs no model here: chat_template, local.num_threads, "
        "tensor_parallel_size, enforce_eager"
    ]


def test_a_model_named_for_an_upstream_is_counted_if_it_is_here(tmp_path: Path) -> None:
    upstream = {"url": "http://127.0.0.1:1"}
    elsewhere = configured(upstream=upstream, model="/models/on-the-upstreams-machine", revision="abc")
    assert startup.problems(elsewhere) == []
    assert list(startup.notices(elsewhere)) == []
    (problem,) = problems(upstream=upstream, model=str(tmp_path))
    assert "config.json" in problem
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    (problem,) = problems(upstream=upstream, model=str(tmp_path))
    assert problem.startswith("model_type unheard_of: no visual-token rule")
    assert problems(upstream=upstream, model="demo") == []


def test_a_format_whose_decoder_is_missing_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    media = {"formats": ["jpeg", "heic"]}
    assert problems(media=media) == []
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert problems(media=media) == ["--media-formats heic: its decoder is missing; pip install 'opsin[heif]'"]
    assert problems() == []


def test_an_upstream_has_to_read_the_formats_that_it_gets() -> None:
    values: dict[str, Any] = {"upstream": {"url": "http://127.0.0.1:1"}, "media": {"formats": ["png", "tiff", "avif"]}}
    (notice,) = notices(**values)
    assert notice.startswith("--media-formats avif tiff: an upstream of a kind that opsin does not know")


def test_bytes_in_decoding_have_to_hold_one_picture() -> None:
    (problem,) = problems(media={"max_decoding_bytes": 1000})
    assert "max_decoding_bytes (1000) should not be less than max_decoded_bytes_per_image (100000000)" in problem


def test_metrics_need_another_port() -> None:
    assert "the same as --port" in problems(gateway={"metrics_port": 8000})[0]
    assert problems(gateway={"metrics_port": 0, "port": 0}) == []


def test_a_context_beyond_the_models_own_is_refused() -> None:
    assert problems(max_model_len=8192) == []
    assert problems(max_model_len=8193) == ["--max-model-len 8193: demo has positions for 8192 tokens"]


def test_an_install_without_the_local_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (text,) = problems()
    assert "pip install 'opsin[local]'" in text
    assert "--upstream URL" in text
    assert problems(upstream={"url": "http://127.0.0.1:1"}) == []


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    assert problems(model=str(tmp_path)) == [f"model {tmp_path}: config.json: missing from the model folder"]


def test_a_model_is_not_taken_for_a_key() -> None:
    def keys(*words: str) -> list[str]:
        return [problem.text for problem in startup.problems(read(parse(["serve", *words])))]

    assert keys("--api-key", "one", "two/three+four==") == []
    (text,) = keys("--api-key", "one", "owner/name")
    assert "looks like a model" in text
    assert "owner" not in text
    assert keys("--api-key", "one", "owner/name", "--model", "demo") == []


class TestPicturesByUrl:
    def test_what_allows_nothing_by_itself_is_said(self) -> None:
        (notice,) = notices(media={"fetch": {"allow_plain_http": True, "max_redirects": 1}})
        assert notice.startswith("no effect without --allowed-media-domains or --allow-public-https")
        assert notice.endswith("media.fetch.allow_plain_http, media.fetch.max_redirects")
        assert notices(media={"fetch": {"allow_plain_http": True, "allow_public_https": True}}) == []

    def test_a_proxy_has_to_judge_addresses_itself(self) -> None:
        fetch = {"allowed_media_domains": ["a.b"], "proxy": "http://user:pass@proxy.example:3128"}
        assert "refuse private addresses itself" in notices(media={"fetch": fetch})[0]

    def test_files_that_are_not_there_are_problems(self, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").touch()
        for ca_file, why in ((tmp_path / "none.pem", "cannot be read: No such"), (tmp_path / "empty.pem", "no PEM")):
            (text,) = problems(media={"fetch": {"ca_file": ca_file}})
            assert why in text
        (text,) = problems(media={"allowed_local_media_path": tmp_path / "absent"})
        assert "there is no such folder" in text
        chain, _ = certificate(tmp_path / "pair")
        assert problems(media={"fetch": {"ca_file": chain}, "allowed_local_media_path": tmp_path}) == []

    def test_bad_hosts_ports_and_networks_are_told_at_once(self) -> None:
        texts = problems(
            media={
                "fetch": {
                    "allowed_media_domains": ["https://a.b", "*.com", "good.example", "10.0.0.1"],
                    "allowed_private_networks": ["10.0.0.1/8"],
                    "allowed_ports": [0],
                    "proxy": "socks5://secret-user:secret@x:1",
                    "max_redirects": 4,
                }
            }
        )
        assert len(texts) == 6
        assert all(text.startswith("media.fetch.") for text in texts)
        assert not any("secret" in text for text in texts)


class TestCertificates:
    def test_a_pair_that_fits(self, tmp_path: Path) -> None:
        chain, key = certificate(tmp_path)
        assert problems(gateway={"ssl_certfile": chain, "ssl_keyfile": key}) == []

    def test_a_key_in_the_same_file(self, tmp_path: Path) -> None:
        chain, key = certificate(tmp_path)
        both = tmp_path / "both.pem"
        both.write_text(chain.read_text() + key.read_text())
        assert problems(gateway={"ssl_certfile": both}) == []

    def test_files_that_are_absent_or_no_pem(self, tmp_path: Path) -> None:
        chain, _ = certificate(tmp_path)
        assert problems(gateway={"ssl_certfile": "a.pem", "ssl_keyfile": "b.pem"}) == [
            "--ssl-certfile a.pem: there is no such file",
            "--ssl-keyfile b.pem: there is no such file",
        ]
        (tmp_path / "text").write_text("hello")
        for broken in ({"ssl_certfile": tmp_path / "text"}, {"ssl_certfile": chain}):
            assert "not a PEM certificate chain and its PEM key" in problems(gateway=broken)[0]

    def test_a_foreign_key(self, tmp_path: Path) -> None:
        chain, _ = certificate(tmp_path)
        _, key = certificate(tmp_path / "other")
        (text,) = problems(gateway={"ssl_certfile": chain, "ssl_keyfile": key})
        assert "does not belong to the certificate" in text

    @pytest.mark.parametrize("password", [None, "wrong", "right"])
    def test_an_encrypted_key_never_asks_the_terminal(self, tmp_path: Path, password: str | None) -> None:
        chain, key = certificate(tmp_path, "-passout", "pass:right")
        files = {"ssl_certfile": chain, "ssl_keyfile": key, "ssl_keyfile_password": password}
        texts = problems(gateway=files)
        assert texts == [] if password == "right" else "--ssl-keyfile-password is missing or does not open" in texts[0]


class TestChatTemplate:
    def test_a_file_or_the_template_itself(self, tmp_path: Path) -> None:
        (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
        card = load_card(resolve(Settings().model_location))
        for stated in ("mine.jinja", "{{ messages[0].content }}!"):
            assert problems(chat_template=stated) == []
            settings = configured(chat_template=stated).checked()
            assert startup.template_of(settings, card).render([{"role": "user", "content": "Hi"}]) == "Hi!"

    def test_neither(self, tmp_path: Path) -> None:
        assert problems(chat_template="absent.jinja") == [
            "--chat-template absent.jinja: the file cannot be read: No such file or directory"
        ]
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        assert problems(chat_template="binary") == ["--chat-template binary: the file is not UTF-8"]


def test_code_of_a_checkpoint_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(Settings().model_location, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForImageTextToText": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    (text,) = problems(model=str(folder))
    assert "brings code of its own (modeling_own.Own), which would run with your rights" in text
    assert problems(model=str(folder), local={"trust_remote_code": True}) == []
