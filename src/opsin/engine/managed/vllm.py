"""``vllm serve``. Flags are those of vLLM 0.32 and 0.33."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from opsin.engine.managed.launch import LOOPBACK, NOWHERE, EngineProgram, Passed, Serving, flag, names_in, words_of

_KWARGS = "--mm-processor-kwargs"
_OWN_SERVER = "opsin alone reaches the engine, by HTTP on a loopback port"
_ONE_KEY = "opsin makes a key for every start and gives it by the environment"
_NO_REQUEST_SETS = "opsin forwards no such field, and nobody else may reach the engine"

_GONE = (
    "--disable-log-requests",
    "--disable-mm-input-cache",
    "--disable-mm-preprocessor-cache",
    "--enable-reasoning",
    "--engine-use-ray",
    "--max-long-partial-prefills",
    "--max-num-partial-prefills",
    "--max-seq-len-to-capture",
    "--num-scheduler-steps",
    "--preemption-mode",
    "--scheduler-delay-factor",
    "--swap-space",
    "--task",
    "--use-v2-block-manager",
    "--worker-use-ray",
)
"""Scripts still carry them. Others that are gone changed answers: these vLLM shall refuse itself."""


def _arguments(serving: Serving, port: int, passed: Sequence[Passed]) -> Sequence[str]:
    stated = names_in(passed)
    limits = {"image": serving.num_images, "video": 0, "audio": 0}
    return (
        *("serve", serving.model),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--served-model-name", *serving.names),
        *flag("--revision", serving.revision),
        *flag("--code-revision", serving.revision if serving.trust_remote_code else None),
        *flag("--trust-remote-code", serving.trust_remote_code),
        *flag("--download-dir", serving.download_dir),
        *flag("--chat-template", serving.chat_template),
        *flag("--max-model-len", serving.max_model_len),
        *flag("--max-num-seqs", serving.max_num_seqs),
        *flag("--dtype", serving.dtype),
        *flag("--quantization", serving.quantization),
        *flag("--gpu-memory-utilization", serving.device_memory_share),
        *("--limit-mm-per-prompt", json.dumps(limits)),  # what is not named here may come 999 times
        *_processor_kwargs(serving.mm_processor_kwargs or {}, {one.name for one in passed}),
        *("--allowed-media-domains", NOWHERE),
        "--enable-prompt-tokens-details",
        *flag("--enable-per-request-metrics", "--disable-log-stats" not in stated),  # which needs them
        "--disable-uvicorn-access-log",  # opsin has a line for every request
        *words_of(passed),
    )


def _processor_kwargs(kwargs: Mapping[str, object], stated: set[str], at: str = _KWARGS) -> Iterator[str]:
    """Key by key, which vLLM merges with keys of the operator's; a whole object of theirs replaces ours."""
    for key, value in kwargs.items():
        name = f"{at}.{key}"
        if isinstance(value, Mapping):
            yield from _processor_kwargs(cast("Mapping[str, object]", value), stated, name)
        elif not stated & {name, _KWARGS}:
            yield from (name, json.dumps(value))


VLLM = EngineProgram(
    name="vllm",
    program=("vllm",),
    install="pip install vllm",
    arguments=_arguments,
    environment={
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_SERVER_DEV_MODE": "0",  # its routes can reset caches and pause the engine
        "VLLM_NO_USAGE_STATS": "1",
    },
    key_variable="VLLM_API_KEY",
    heeds=frozenset(
        {
            "chat_template",
            "max_model_len",
            "mm_processor_kwargs.",
            "revision",
            "local.dtype",
            "local.gpu_memory_utilization",
            "local.max_num_seqs",
            "local.quantization",
            "local.trust_remote_code",
        }
    ),
    overruled={
        "--host": _OWN_SERVER,
        "--port": _OWN_SERVER,
        "--uds": _OWN_SERVER,
        "--grpc": _OWN_SERVER,
        "--grpc-port": _OWN_SERVER,
        "--headless": _OWN_SERVER,
        "--tokens-only": "opsin speaks chat completions",
        "--root-path": _OWN_SERVER,
        "--ssl-keyfile": _OWN_SERVER,
        "--ssl-certfile": _OWN_SERVER,
        "--ssl-ca-certs": _OWN_SERVER,
        "--ssl-cert-reqs": _OWN_SERVER,
        "--ssl-ciphers": _OWN_SERVER,
        "--enable-ssl-refresh": _OWN_SERVER,
        "--allow-credentials": _OWN_SERVER,
        "--allowed-headers": _OWN_SERVER,
        "--allowed-methods": _OWN_SERVER,
        "--allowed-origins": _OWN_SERVER,
        "--api-key": _ONE_KEY,
        "--served-model-name": "say it as opsin's own flag",
        "--limit-mm-per-prompt": "say it as opsin's own flag",
        "--allowed-media-domains": "opsin fetches pictures, and the engine nothing",
        "--allowed-local-media-path": "opsin reads pictures, and the engine no file",
        "--no-enable-prompt-tokens-details": "opsin reads these details",
        "--trust-request-mm-kwargs": _NO_REQUEST_SETS,
        "--trust-request-chat-template": _NO_REQUEST_SETS,
        "--enable-mm-embeds": "whoever sends features of a wrong shape can end the engine",
        "--enable-prompt-embeds": "whoever sends features of a wrong shape can end the engine",
        **dict.fromkeys(_GONE, "vLLM has it no more, and answers are the same without"),
    },
)
