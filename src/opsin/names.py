"""What settings are called on the command line and in Python. Names follow vLLM where the meaning is the same.

Each one is a setting by its dotted path; types, choices and descriptions are the settings' own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting by its dotted path. The flag is called as the path's last word, unless ``names`` says otherwise."""

    setting: str
    names: tuple[str, ...] = ()
    repeated: bool = False  # takes one word, and may be said several times

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of its names; the first one is used in messages."""
        return self.names or ("--" + self.setting.rpartition(".")[2].replace("_", "-"),)

    @property
    def keyword(self) -> str:
        """The same in Python."""
        return self.spellings[0].removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Group:
    """Flags that ``--help`` shows together."""

    title: str
    flags: tuple[Flag, ...]


MODEL = Group(
    "model",
    (
        Flag("model"),
        Flag("revision"),
        Flag("hub.token", ("--hf-token",)),
        Flag("hub.offline"),
        Flag("hub.download_dir"),
    ),
)
LOADING = Group(
    "how the model runs",
    (
        Flag("max_model_len"),
        Flag("chat_template"),
        Flag("local.device"),
        Flag("local.dtype"),
        Flag("local.vision_dtype"),
        Flag("local.attn_implementation"),
        Flag("local.max_num_seqs"),
        Flag("local.max_num_batched_tokens"),
        Flag("local.kv_cache_memory_bytes"),
        Flag("local.gpu_memory_utilization", ("--gpu-memory-utilization", "--device-memory-utilization")),
        Flag("local.quantization", ("--quantization", "-q")),
        Flag("local.trust_remote_code"),
        Flag("media.limit_mm_per_prompt"),
        Flag("mm_processor_kwargs"),
        Flag("media.render_mode"),
    ),
)
SERVER = Group(
    "server",
    (
        Flag("gateway.host"),
        Flag("gateway.port"),
        Flag("gateway.api_key"),
        Flag("gateway.api_keys_file"),
        Flag("gateway.api_keys_in_redis"),
        Flag("gateway.server_secret_file"),
        Flag("redis_url"),
        Flag("limits", ("--tenant-limits",)),
        Flag("gateway.no_auth"),
        Flag("served_model_name"),
        Flag("media.formats", ("--media-formats",)),
        Flag("media.require_sandbox"),
        Flag("gateway.allowed_origins"),
        Flag("gateway.root_path"),
        Flag("gateway.ssl_certfile"),
        Flag("gateway.ssl_keyfile"),
        Flag("gateway.ssl_keyfile_password"),
        Flag("gateway.metrics_port"),
        Flag("gateway.max_requests"),
        Flag("gateway.max_running"),
        Flag("gateway.max_queue_s"),
        Flag("gateway.max_body_bytes"),
        Flag("gateway.max_image_tiles"),
        Flag("gateway.max_image_tokens"),
        Flag("gateway.max_request_image_tokens"),
        Flag("gateway.over_budget"),
        Flag("gateway.offload"),
        Flag("gateway.offload_format"),
        Flag("log_level"),
        Flag("log_format"),
    ),
)
MEDIA = Group(
    "pictures by URL; all of it is off until it is allowed",
    (
        Flag("media.fetch.allowed_media_domains"),
        Flag("media.fetch.allow_public_https"),
        Flag("media.fetch.allow_plain_http"),
        Flag("media.fetch.allow_ip_literals"),
        Flag("media.fetch.allowed_private_networks"),
        Flag("media.fetch.allowed_ports", ("--allowed-media-ports",)),
        Flag("media.fetch.max_redirects", ("--max-media-redirects",)),
        Flag("media.fetch.proxy", ("--media-proxy",)),
        Flag("media.fetch.ca_file", ("--media-ca-file",)),
        Flag("media.fetch.max_remote_images"),
        Flag("media.allowed_local_media_path"),
    ),
)
CACHE = Group(
    "what is kept of pictures between requests",
    (
        Flag("cache.memory_bytes", ("--cache-memory-bytes",)),
        Flag("cache.dir", ("--cache-dir",)),
        Flag("cache.dir_bytes", ("--cache-dir-bytes",)),
        Flag("cache.ttl_s", ("--cache-ttl",)),
        Flag("cache.max_bytes_per_tenant", ("--cache-max-bytes-per-tenant",)),
        Flag("cache.file_ttl_s", ("--file-ttl",)),
        Flag("cache.max_file_bytes_per_tenant"),
        Flag("cache.max_files_per_tenant"),
    ),
)
ENGINE = Group(
    "engine",
    (
        Flag("engine"),
        Flag("managed.program", ("--engine-program",)),
        Flag("managed.container", ("--engine-container",)),
        Flag("upstream.url", ("--upstream",), repeated=True),
        Flag("upstream.model", ("--upstream-model",)),
        Flag("upstream.kind", ("--upstream-kind",)),
        Flag("upstream.exclusive", ("--upstream-exclusive",)),
        Flag("upstream.api_key", ("--upstream-api-key",)),
        Flag("upstream.tokenizer", ("--upstream-tokenizer",)),
        Flag("upstream.special_tokens_in_text"),
        Flag("inject_delay_s", ("--inject-delay",)),
    ),
)
SERVE = (MODEL, LOADING, SERVER, MEDIA, CACHE, ENGINE)
