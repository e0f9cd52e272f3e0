"""vLLM's flags that opsin does not have, and what becomes of each.

Ignored, and said so, where it could not make an answer different; else refused with what to do instead. Names are those
of ``vllm serve --help=all``, and older ones that scripts still carry. Knows no parser: what a flag takes is told here,
so that its value is never taken for the model. An engine that opsin starts gets them all, and unknown ones too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from opsin.core.problems import Problem

ATTACH = "let opsin start vLLM with it: --engine vllm, or attach opsin in front of one: --upstream URL"
_MAX_SHOWN = 60


class Fate(StrEnum):
    """What becomes of a flag."""

    IGNORED = "ignored"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # nobody's here: an engine that opsin starts may know it


class Takes(StrEnum):
    """The words behind a flag."""

    NOTHING = "nothing"  # and there is a --no- form
    ONE = "one"
    SEVERAL = "several"
    ANYTHING = "anything"  # all words up to the next flag, also none


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One flag. ``note`` says why it is ignored, or what to do instead of a refused one."""

    names: tuple[str, ...]
    takes: Takes
    fate: Fate
    note: str
    of_engine: bool  # without effect where the model runs behind an upstream
    neutral: frozenset[str]  # values that ask for nothing

    @property
    def keyword(self) -> str:
        """The same in Python."""
        return self.names[0].removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Stated:
    """A flag that somebody gave. ``name`` is as it was typed; a switch has a bool, everything else its text.

    ``behind`` are the words that followed it.
    """

    flag: VllmFlag
    name: str
    value: str | bool
    behind: tuple[str, ...] = ()

    @classmethod
    def of_keyword(cls, name: str, value: object) -> Stated:
        """From Python, where a value may be any JSON."""
        if value is None or isinstance(value, bool):
            return cls(BY_KEYWORD[name], name, bool(value))
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return cls(BY_KEYWORD[name], name, text, (text,))

    @property
    def asks(self) -> bool:
        """Whether it asks for something."""
        return self.value is not False and self.value not in self.flag.neutral

    @property
    def words(self) -> tuple[str, ...]:
        """As a command line has it. A keyword that asks for nothing is none."""
        if not self.name.startswith("-"):
            return () if self.value is False else _words(self.flag.names[0], self.behind)
        return _words(self.name, self.behind)

    def __str__(self) -> str:
        if self.value is True:
            return self.name
        text = str(self.value)
        return f"{self.name} {text if len(text) <= _MAX_SHOWN else f'{text[:_MAX_SHOWN]}…'}"


def _words(name: str, behind: tuple[str, ...]) -> tuple[str, ...]:
    """A value that looks like a flag has to stay at its own."""
    return (f"{name}={behind[0]}",) if len(behind) == 1 and behind[0].startswith("-") else (name, *behind)


def unknown(name: str) -> VllmFlag:
    """A flag of nobody's, as it was typed."""
    return VllmFlag((name,), Takes.ANYTHING, Fate.UNKNOWN, "", of_engine=True, neutral=frozenset())


def problems(stated: Iterable[Stated]) -> Iterator[Problem]:
    """One for each reason to refuse."""
    refused = [one for one in stated if one.asks and one.flag.fate is Fate.REFUSED]
    yield from (Problem(f"{names}: {note}") for note, names in _by_note(refused, str))


def notices(stated: Iterable[Stated]) -> Iterator[str]:
    """One for each reason to ignore."""
    ignored = [one for one in stated if one.asks and one.flag.fate is Fate.IGNORED]
    yield from (f"{names}: ignored; {note}" for note, names in _by_note(ignored, lambda one: one.name))


def _by_note(stated: Sequence[Stated], shown: Callable[[Stated], str]) -> Iterator[tuple[str, str]]:
    for note in dict.fromkeys(one.flag.note for one in stated):
        yield note, ", ".join(shown(one) for one in stated if one.flag.note == note)


@dataclass(frozen=True, slots=True)
class _Group:
    """Flags with one fate and one reason, as words: ``long-name/-short=neutral|neutral``."""

    fate: Fate
    note: str
    switches: str
    values: str
    lists: str

    def flags(self, *, of_engine: bool) -> Iterator[VllmFlag]:
        for takes, words in ((Takes.NOTHING, self.switches), (Takes.ONE, self.values), (Takes.SEVERAL, self.lists)):
            for word in words.split():
                names, _, neutral = word.partition("=")
                long, *short = names.split("/")
                neutral = frozenset(neutral.split("|")) if neutral else frozenset[str]()
                yield VllmFlag((f"--{long}", *short), takes, self.fate, self.note, of_engine, neutral)


def _refused(instead: str, *, switches: str = "", values: str = "", lists: str = "") -> _Group:
    return _Group(Fate.REFUSED, instead, switches, values, lists)


def _ignored(why: str, *, switches: str = "", values: str = "", lists: str = "") -> _Group:
    return _Group(Fate.IGNORED, why, switches, values, lists)


_OF_ENGINE = (
    _refused(
        f"the local engine runs on one device; for several GPUs {ATTACH}",
        switches="""
            enable-expert-parallel/-ep enable-eplb enable-elastic-ep enable-ep-weight-filter enable-dbo enable-hc-sp
            data-parallel-external-lb/-dpe data-parallel-hybrid-lb/-dph data-parallel-multi-port-external-lb/-dpm
            dcp-q-replicate enable-batch-sharded-sampling enable-fault-tolerance headless""",
        values="""
            tensor-parallel-size/-tp=1 pipeline-parallel-size/-pp=1 data-parallel-size/-dp=1
            prefill-context-parallel-size/-pcp=1 decode-context-parallel-size/-dcp=1 nnodes/-n=1 node-rank/-r=0
            data-parallel-size-local/-dpl=1 data-parallel-start-rank/-dpr=0 data-parallel-rank/-dpn=0
            data-parallel-address/-dpa data-parallel-rpc-port/-dpp data-parallel-backend/-dpb=mp eplb-config
            elastic-ep-max-dp-size fault-tolerance-config ubatch-size=0""",
    ),
    _refused(
        f"LoRA adapters are not served; merge it into a model folder, or {ATTACH}",
        switches="""
            enable-lora fully-sharded-loras enable-tower-connector-lora enable-mixed-moe-lora-format
            enable-moe-shared-loras specialize-active-lora""",
        values="max-loras max-lora-rank max-cpu-loras max-lora-cls-labels lora-dtype default-mm-loras",
        lists="lora-modules lora-target-modules",
    ),
    _refused(
        f"the local engine keeps its KV cache in the model's dtype; leave the flag out, or {ATTACH}",
        values="kv-cache-dtype=auto",
        lists="kv-cache-dtype-skip-layers",
    ),
    _refused(
        f"the vision encoder runs in --vision-dtype; leave the flag out, or {ATTACH}",
        values="""
            mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path
            mm-encoder-fp8-scale-save-margin""",
    ),
    _refused(
        "pictures are always read as RGB on white, each at its own size",
        values="media-io-kwargs={}",
    ),
    _refused(
        "a model is served as its folder says: change the file in a copy of the folder",
        switches="skip-tokenizer-init allow-deprecated-quantization",
        values="""
            hf-overrides={} hf-config-path tokenizer tokenizer-mode=auto|hf tokenizer-revision code-revision
            model-class-overrides={} quantization-config rope-scaling rope-theta config-format=auto|hf""",
    ),
    _refused(
        "sampling defaults are those of the model's generation_config.json; send others in the request",
        values="generation-config=auto override-generation-config={}",
    ),
    _refused(
        "only .safetensors weights are read; convert the checkpoint",
        values="load-format=auto|safetensors|hf|fastsafetensors model-loader-extra-config={}",
    ),
    _refused(
        f"opsin serves chat, with pictures, as text; for anything else {ATTACH}",
        switches="""
            mm-encoder-only enable-prompt-embeds enable-mm-embeds enable-return-routed-experts
            return-sampling-mask""",
        values="""
            runner=auto|generate convert=auto|none task=auto|generate pooler-config io-processor-plugin
            diffusion-config/-dc""",
    ),
    _refused(
        "the vision encoder is always loaded; to refuse pictures say --limit-mm-per-prompt '{\"image\": 0}'",
        switches="language-model-only",
    ),
    _refused(
        f"weights and KV cache stay on the device; take a smaller or quantized model, or {ATTACH}",
        values="""
            cpu-offload-gb=0 kv-offloading-size kv-offloading-backend offload-backend=auto offload-group-size=0
            offload-num-in-group offload-prefetch-step""",
        lists="cpu-offload-params offload-params",
    ),
    _refused(
        f"encode, prefill and decode run in one engine; to take them apart {ATTACH}",
        values="""
            kv-transfer-config ec-transfer-config ec-manager-config kv-events-config weight-transfer-config
            engram-config""",
    ),
    _refused(
        f"classes named on the command line are never run; {ATTACH}",
        values="worker-cls=auto worker-extension-cls scheduler-cls",
        lists="logits-processors",
    ),
    _refused(
        "name the device by the environment: CUDA_VISIBLE_DEVICES",
        values="device-ids",
    ),
    _ignored(
        "keys and values of finished requests are kept; local.prefix_cache_bytes says how many",
        switches="enable-prefix-caching enable-mamba-shared-prefix-checkpoint",
        values="prefix-caching-hash-algo prefix-cache-retention-interval prefix-match-unit",
    ),
    _ignored(
        "nothing is compiled or captured here",
        switches="enforce-eager sleep-mode-offload-cudagraph enable-flashinfer-autotune jit-monitor-verbose",
        values="""
            compilation-config/-cc optimization-level/-O performance-mode kernel-config jit-monitor-mode
            max-cudagraph-capture-size max-seq-len-to-capture""",
        lists="cudagraph-capture-sizes",
    ),
    _ignored(
        "models run in Transformers with PyTorch's own kernels; see --attn-implementation",
        switches="""
            disable-cascade-attn use-fp64-gumbel enable-mamba-cache-stochastic-rounding use-replayssm
            swa-bounded-replay""",
        values="""
            attention-backend attention-config/-ac mm-encoder-attn-backend moe-backend linear-backend all2all-backend
            ir-op-priority mamba-backend mamba-ssu-algorithm mamba-cache-philox-rounds gdn-prefill-backend
            kda-decode-backend kda-prefill-backend sparse-indexer-topk-backend replayssm-buffer-len model-impl""",
    ),
    _ignored(
        "prompts are always cut at --max-num-batched-tokens",
        switches="""
            enable-chunked-prefill async-scheduling disable-chunked-mm-input scheduler-reserve-full-isl
            long-prefill-token-threshold-adaptive""",
        values="""
            max-num-scheduled-tokens max-num-active-seqs long-prefill-token-threshold
            prefill-schedule-interval scheduling-policy=fcfs max-num-partial-prefills max-long-partial-prefills
            num-scheduler-steps preemption-mode scheduler-delay-factor""",
    ),
    _ignored(
        "the KV cache has no blocks; --kv-cache-memory-bytes bounds it, --gpu-memory-utilization the device",
        switches="""
            disable-hybrid-kv-cache-manager kv-sharing-fast-prefill kv-cache-metrics disable-sliding-window
            use-v2-block-manager""",
        values="""
            block-size swap-space num-gpu-blocks-override watermark kv-cache-metrics-sample
            mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype""",
    ),
    _ignored(
        "weights are .safetensors, read once at the start",
        switches="use-tqdm-on-load",
        values="""
            safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
            pt-load-map-location max-parallel-loading-workers""",
        lists="ignore-patterns",
    ),
    _ignored(
        "pictures are decoded in worker processes with settings of their own: media.* in opsin config show",
        switches="skip-mm-profiling mm-device-do-normalize disable-mm-preprocessor-cache disable-mm-input-cache",
        values="""
            mm-processor-cache-gb mm-processor-cache-type mm-shm-cache-max-object-size-mb mm-hasher-algorithm
            mm-processor-device mm-tensor-ipc mm-ipc-gpu-memory-gb renderer-num-workers video-pruning-rate
            video-pruning-method""",
    ),
    _ignored(
        "text and pictures always stay in the order of the request",
        switches="interleave-mm-strings",
    ),
    _ignored(
        "there is one device",
        switches="""
            disable-custom-all-reduce disable-nccl-for-dp-synchronization enable-nccl-comm-suspend numa-bind
            enable-shm-tensor-arena ray-workers-use-nsight worker-use-ray engine-use-ray""",
        values="""
            mm-encoder-tp-mode distributed-executor-backend distributed-timeout-seconds cpu-distributed-timeout-seconds
            master-addr master-port expert-placement-strategy dbo-decode-token-threshold dbo-prefill-token-threshold
            dcp-comm-backend dcp-kv-cache-interleave-size cp-kv-cache-interleave-size dp-sync-interval""",
        lists="numa-bind-cpus numa-bind-nodes",
    ),
    _ignored(
        "tokens are not speculated; answers are the same without",
        values="""
            speculative-config/-sc spec-method spec-model spec-tokens speculative-model num-speculative-tokens
            per-request-spec-decode-metrics""",
    ),
    _ignored(
        "sampling is seeded by 'seed' of the request alone",
        values="seed",
    ),
    _ignored(
        "the engine does not sleep",
        switches="enable-sleep-mode enable-cumem-allocator",
        lists="sleep-preserve-parameter-names",
    ),
    _ignored(
        "tools are not built yet; a request with 'tools' is refused",
        switches="enable-auto-tool-choice exclude-tools-when-tool-choice-none",
        values="tool-call-parser tool-server tool-strict-level",
    ),
    _ignored(
        "what the model writes is sent as it is, thoughts included",
        switches="enable-reasoning",
        values="reasoning-parser reasoning-config",
    ),
    _ignored(
        "constrained output is not built yet; a request for it is refused",
        values="structured-outputs-config guided-decoding-backend",
    ),
    _ignored(
        "log probabilities are not built yet; a request for them is refused",
        switches="return-tokens-as-token-ids",
        values="max-logprobs logprobs-mode",
    ),
)

_OF_SERVER = (
    _refused(
        "put a proxy with that in front of opsin",
        values="uds ssl-ca-certs ssl-cert-reqs=0 ssl-ciphers",
    ),
    _refused(
        "opsin speaks OpenAI's chat completions over HTTP alone",
        switches="grpc tokens-only",
        values="grpc-port",
    ),
    _refused(
        "code named on the command line is never run",
        values="middleware tool-parser-plugin reasoning-parser-plugin",
    ),
    _refused(
        "prompts are built by the chat template alone: write it into a template and name that with --chat-template",
        values="default-chat-template-kwargs={} cohere-format",
    ),
    _refused(
        "answers carry no watermark",
        values="watermark-config",
    ),
    _ignored(
        "every request has one line in the log, without its content; see --log-level and --log-format",
        switches="""
            enable-log-requests disable-log-requests disable-uvicorn-access-log enable-log-outputs enable-log-deltas
            log-error-stack""",
        values="max-log-len uvicorn-log-level log-config-file logging-config disable-access-log-for-endpoints",
    ),
    _ignored(
        "opsin has metrics of its own: /metrics, and a timeline in every answer",
        switches="""
            disable-log-stats aggregate-engine-logging enable-logging-iteration-details enable-mfu-metrics
            enable-layerwise-nvtx-tracing cudagraph-metrics enable-per-request-metrics enable-server-load-tracking
            enable-trace-replay""",
        values="otlp-traces-endpoint profiler-config custom-histogram-buckets show-hidden-metrics-for-version",
        lists="collect-detailed-traces",
    ),
    _ignored(
        "an answer has the role assistant, details of usage and x-request-id; a stream has usage if asked for",
        switches="enable-force-include-usage enable-prompt-tokens-details enable-request-id-headers",
        values="response-role=assistant stream-interval fingerprint-mode fingerprint-value aux-output-config",
    ),
    _ignored(
        "there are no such routes; see /docs",
        switches="""
            enable-scale-out enable-tokenizer-info-endpoint enable-offline-docs enable-flash-late-interaction
            cohere-is-reasoning-model""",
        values="anthropic-disabled-thinking-effort",
    ),
    _ignored(
        "/docs stays, behind the key",
        switches="disable-fastapi-docs",
    ),
    _ignored(
        "a request can never set these",
        switches="trust-request-chat-template trust-request-mm-kwargs",
    ),
    _ignored(
        "what a template reads is seen from the template",
        values="chat-template-content-format",
    ),
    _ignored(
        "one process listens; for more start replicas",
        values="api-server-count/-asc=1 data-parallel-supervisor-port dp-supervisor-probe-failure-threshold "
        "dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s",
    ),
    _ignored(
        "pages of --allowed-origins may send any header, and a key as a header, never as a cookie",
        switches="allow-credentials",
        values="allowed-headers allowed-methods",
    ),
    _ignored(
        "--max-requests limits the requests in progress",
        values="max-num-queued-reqs max-num-queued-tokens",
    ),
    _ignored(
        "said by settings of opsin: gateway.drain_timeout_s, gateway.heartbeat_s, gateway.max_body_bytes",
        values="shutdown-timeout sse-keep-alive-interval h11-max-header-count h11-max-incomplete-event-size",
    ),
    _ignored(
        "a new certificate is read at the next start",
        switches="enable-ssl-refresh",
    ),
    _ignored(
        "an OPSIN_ variable of no setting is noted in the log",
        switches="fail-on-environ-validation",
    ),
    _ignored(
        "there is nothing that reads it",
        values="additional-config",
    ),
)

FLAGS = (
    *(flag for group in _OF_ENGINE for flag in group.flags(of_engine=True)),
    *(flag for group in _OF_SERVER for flag in group.flags(of_engine=False)),
)
BY_KEYWORD = {flag.keyword: flag for flag in FLAGS}
BY_NAME = {name: flag for flag in FLAGS for name in flag.names}
