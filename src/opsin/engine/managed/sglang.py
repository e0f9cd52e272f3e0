"""``sglang serve``. Flags are those of SGLang 0.5.23.

It takes a key on its command line only, where every user of the machine can read it, so it gets none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from opsin.engine.managed.launch import (
    FETCHES_NOTHING,
    GPU_SETTINGS,
    LOOPBACK,
    NOWHERE,
    OWN_FLAG,
    OWN_SERVER,
    EngineProgram,
    Passed,
    Serving,
    flag,
    names_in,
    words_of,
)
from opsin.engine.upstream.dialect import UpstreamKind

_ON_COMMAND_LINE = "SGLang takes keys on its command line only, where everybody on the machine can read them"


def _arguments(serving: Serving, port: int, passed: Sequence[Passed]) -> Sequence[str]:
    limits = {"image": serving.num_images, "video": 0, "audio": 0}
    kwargs = serving.mm_processor_kwargs if "--mm-process-config" not in names_in(passed) else None
    return (
        *("serve", "--model-path", serving.model),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--served-model-name", serving.names[0]),
        *flag("--revision", serving.revision),
        *flag("--trust-remote-code", serving.trust_remote_code),
        *flag("--download-dir", serving.download_dir),
        *flag("--chat-template", serving.chat_template),
        *flag("--context-length", serving.max_model_len),
        *flag("--max-running-requests", serving.max_num_seqs),
        *flag("--dtype", serving.dtype),
        *flag("--quantization", serving.quantization),
        *flag("--mem-fraction-static", serving.device_memory_share),
        *flag("--enable-multimodal", serving.num_images > 0),
        *("--limit-mm-data-per-request", json.dumps(limits)),
        *flag("--mm-process-config", json.dumps({"image": dict(kwargs)}) if kwargs else None),
        *("--allowed-media-domains", NOWHERE),
        "--enable-cache-report",
        "--enable-metrics",
        *("--uvicorn-access-log-exclude-prefixes", "/"),  # opsin has a line for every request
        *words_of(passed),
    )


SGLANG = EngineProgram(
    name="sglang",
    kind=UpstreamKind.SGLANG,
    program=("sglang",),
    install="pip install sglang",
    arguments=_arguments,
    heeds=GPU_SETTINGS,
    overruled={
        "--host": OWN_SERVER,
        "--port": OWN_SERVER,
        "--ssl-keyfile": OWN_SERVER,
        "--ssl-certfile": OWN_SERVER,
        "--ssl-ca-certs": OWN_SERVER,
        "--grpc-mode": OWN_SERVER,
        "--api-key": _ON_COMMAND_LINE,
        "--admin-api-key": _ON_COMMAND_LINE,
        "--served-model-name": OWN_FLAG,
        "--limit-mm-data-per-request": "say --limit-mm-per-prompt, which is opsin's own",
        "--allowed-media-domains": FETCHES_NOTHING,
        "--trust-mm-content-hashes": "opsin forwards no hash of a client",
        "--trust-request-chat-template": "opsin forwards no template of a client",
    },
)
