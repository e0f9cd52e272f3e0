"""``vllm serve``. Flags are those of vLLM 0.32 and 0.33."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from opsin.engine.managed.launch import (
    FETCHES_NOTHING,
    GPU_SETTINGS,
    LOOPBACK,
    NOWHERE,
    ONE_KEY,
    OWN_FLAG,
    OWN_SERVER,
    READS_NO_FILES,
    EngineProgram,
    Passed,
    Serving,
    flag,
    names_in,
    words_of,
)
from opsin.engine.upstream.dialect import UpstreamKind

_KWARGS = "--mm-processor-kwargs"
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
    kind=UpstreamKind.VLLM,
    program=("vllm",),
    install="pip install vllm",
    arguments=_arguments,
    environment={
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_SERVER_DEV_MODE": "0",  # its routes can reset caches and pause the engine
        "VLLM_NO_USAGE_STATS": "1",
    },
    key_variable="VLLM_API_KEY",
    heeds=GPU_SETTINGS,
    overruled={
        "--host": OWN_SERVER,
        "--port": OWN_SERVER,
        "--uds": OWN_SERVER,
        "--grpc": OWN_SERVER,
        "--grpc-port": OWN_SERVER,
        "--headless": OWN_SERVER,
        "--tokens-only": "opsin speaks chat completions",
        "--root-path": OWN_SERVER,
        "--ssl-keyfile": OWN_SERVER,
        "--ssl-certfile": OWN_SERVER,
        "--ssl-ca-certs": OWN_SERVER,
        "--ssl-cert-reqs": OWN_SERVER,
        "--ssl-ciphers": OWN_SERVER,
        "--enable-ssl-refresh": OWN_SERVER,
        "--allow-credentials": OWN_SERVER,
        "--allowed-headers": OWN_SERVER,
        "--allowed-methods": OWN_SERVER,
        "--allowed-origins": OWN_SERVER,
        "--api-key": ONE_KEY,
        "--served-model-name": OWN_FLAG,
        "--limit-mm-per-prompt": OWN_FLAG,
        "--allowed-media-domains": FETCHES_NOTHING,
        "--allowed-local-media-path": READS_NO_FILES,
        "--no-enable-prompt-tokens-details": "opsin reads these details",
        "--trust-request-mm-kwargs": _NO_REQUEST_SETS,
        "--trust-request-chat-template": _NO_REQUEST_SETS,
        "--enable-mm-embeds": "whoever sends features of a wrong shape can end the engine",
        "--enable-prompt-embeds": "whoever sends features of a wrong shape can end the engine",
        **dict.fromkeys(_GONE, "vLLM has it no more, and answers are the same without"),
    },
)
