"""Every field of OpenAI's chat completion request and of vLLM's extensions, and what becomes of it here.

The one source for what a request is refused for, and for the tables of ``docs/api.md``. A field without a rule is
ignored, as vLLM does. Knows no types and no ranges: those are in :mod:`opsin.protocol.request`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from opsin.core.errors import UnsupportedParameter


class Fate(StrEnum):
    """What becomes of a field."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"  # whatever it says, the answer is the same
    REFUSED = "refused"  # it would change the answer, and opsin does not do that


class Place(StrEnum):
    """The object that a field belongs to, as a prefix of its path."""

    REQUEST = ""
    STREAM_OPTIONS = "stream_options."
    MESSAGE = "messages[]."
    PART = "messages[].content[]."
    IMAGE_URL = "messages[].content[].image_url."
    FILE = "messages[].content[].file."
    PROCESSOR = "mm_processor_kwargs."
    SIZE = "mm_processor_kwargs.size."

    @property
    def is_closed(self) -> bool:
        """Whether fields without a rule are refused: there they would change how a processor works."""
        return self in (Place.PROCESSOR, Place.SIZE)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One field. ``note`` says why it is ignored, or what to do instead of a refused one."""

    name: str
    fate: Fate
    note: str
    place: Place = Place.REQUEST
    neutral: tuple[object, ...] = ()  # values that ask a refused field for nothing, apart from null
    stays: bool = False  # not for the engine either, where fields that it reads are relayed to it

    @property
    def path(self) -> str:
        """Its place in a request."""
        return self.place + self.name

    def asks(self, value: object) -> bool:
        """Whether this value of a refused field asks for something."""
        return value is not None and value not in self.neutral

    def refusal(self, param: str) -> UnsupportedParameter:
        """The error for a request that asks for it at ``param``."""
        what = "is not supported with this value" if self.neutral else "is not supported"
        return UnsupportedParameter(f"'{param}' {what}: {self.note}", param=param)


@dataclass(frozen=True, slots=True)
class PartTypeRule:
    """A type of content part that is known elsewhere and refused here."""

    name: str
    note: str


def find_refused(place: Place, fields: Mapping[str, object], *, relayed: bool = False) -> FieldRule | None:
    """The rule of the first field that asks for what opsin does not do; ``relayed``: nor lets an engine do."""
    rules = _REFUSED_AND_STAY[place] if relayed else _REFUSED[place]
    for name, value in fields.items():
        rule = rules.get(name) or _strange(place, name)
        if rule is not None and rule.asks(value):
            return rule
    return None


def _strange(place: Place, name: str) -> FieldRule | None:
    """For a field without a rule where such are refused; a long name is cut."""
    if not place.is_closed or name in _ACCEPTED[place]:
        return None
    return FieldRule(name[:_MAX_SHOWN], Fate.REFUSED, _PROCESSOR, place)


def is_relayed(place: Place, name: str) -> bool:
    """Whether an engine that serves more than opsin reads is sent this field of a request or a message."""
    return name not in _STAY[place]


def refuse_unserved(fields: Mapping[str, object]) -> None:
    """Raises UnsupportedParameter for the first field of a request that asks for what opsin does not do."""
    rule = find_refused(Place.REQUEST, fields)
    if rule is not None:
        raise rule.refusal(rule.name)


def _accepted(name: str, note: str, place: Place = Place.REQUEST) -> FieldRule:
    return FieldRule(name, Fate.ACCEPTED, note, place)


def _ignored(name: str, note: str, place: Place = Place.REQUEST, *, stays: bool = False) -> FieldRule:
    return FieldRule(name, Fate.IGNORED, note, place, stays=stays)


def _refused(name: str, note: str, *neutral: object, place: Place = Place.REQUEST, stays: bool = False) -> FieldRule:
    return FieldRule(name, Fate.REFUSED, note, place, neutral, stays)


_AS_PAGES = "send its pages as parts of type 'image_url'"
_NO_TOOLS = "tools are not built yet; describe them in a message and read the answer as text"
_NO_LOGPROBS = "log probabilities are not built yet"
_NO_GRAMMAR = "constrained output is not built yet; describe the format in a message and check the answer"
_TEMPLATE = "prompts are built by the model's own chat template alone"
_NO_SOUND = "opsin reads pictures and writes text"
_IDENTITY = "cache identity comes from the picture's bytes and the tenant of the key, never from a name in the body"
_DETAIL = "set 'detail' of the picture instead"
_PROCESSOR = f"the processor is the server's; {_DETAIL}"
_MAX_SHOWN = 40
_TRANSFER = "the server alone decides where caches live"
_CODE = "code from a request is never run"
_PLACE = "the server alone decides what a request runs on"
_USAGE = "set 'include_usage', which counts at the end"
_NO_PADDING = "chunks are not padded; do without 'stream'"

_ACCEPTED_RULES = (
    _accepted("model", "one of `GET /v1/models`; may be absent"),
    _accepted("messages", "the conversation"),
    _accepted("stream", "server-sent events"),
    _accepted("stream_options", "only with `stream`"),
    _accepted("max_completion_tokens", "absent: as many as fit"),
    _accepted("max_tokens", "the older name of `max_completion_tokens`, which wins"),
    _accepted("min_tokens", "no end before so many tokens"),
    _accepted("temperature", "0: always the most probable token"),
    _accepted("top_p", "1: all tokens"),
    _accepted("top_k", "0 or -1: all tokens"),
    _accepted("min_p", "0: all tokens"),
    _accepted("seed", "of the sampling"),
    _accepted("stop", "one string or several; the answer ends before it"),
    _accepted("ignore_eos", "goes on to `max_completion_tokens`"),
    _accepted("presence_penalty", "0: none"),
    _accepted("frequency_penalty", "0: none"),
    _accepted("repetition_penalty", "1: none"),
    _accepted("mm_processor_kwargs", "only below the server's own"),
    _accepted("min_pixels", "smaller pictures are enlarged to it and no further; Qwen-VL, GLM-V", Place.PROCESSOR),
    _accepted("max_pixels", "larger pictures are scaled down; with tiles: to a square of whole ones", Place.PROCESSOR),
    _accepted("size", "the same two, as Qwen-VL and GLM-V call them", Place.PROCESSOR),
    _accepted("shortest_edge", "`min_pixels` over all frames", Place.SIZE),
    _accepted("longest_edge", "`max_pixels` over all frames", Place.SIZE),
    _accepted("include_usage", "one more chunk, with `usage`", Place.STREAM_OPTIONS),
    _accepted("role", "`system`, `developer` (the same), `user`, `assistant`", Place.MESSAGE),
    _accepted("content", "a string, or a list of parts", Place.MESSAGE),
    _accepted("type", "`text`, `image_url`, `input_image` or `file`", Place.PART),
    _accepted("text", "of a text", Place.PART),
    _accepted("image_url", "of a picture: an object, or the URL itself", Place.PART),
    _accepted("file", "of an uploaded picture", Place.PART),
    _accepted("file_id", "of an uploaded picture, in a part of type `input_image`", Place.PART),
    _accepted("detail", "as in `image_url`, in a part of type `input_image`", Place.PART),
    _accepted(
        "url",
        "a `data:` URL; `https:` and `file:` where those are allowed; `sha256:` and the digest of an uploaded picture",
        Place.IMAGE_URL,
    ),
    _accepted("file_id", "in place of `url`: of an uploaded picture", Place.IMAGE_URL),
    _accepted("file_id", "of a picture that was uploaded to `/v1/files`", Place.FILE),
    _accepted("detail", "`auto`, `low`, `high`, `original`", Place.IMAGE_URL),
)

_CACHES = "caches find equal content by themselves"
_TENANT = "a tenant comes from the key"
_NOT_STORED = "nothing is stored"
_BEAMS = "only with `use_beam_search`"
_GUIDED = "only with a `guided_` field"
_RENDERING = "only on vLLM's render routes"
_EARLIER = "of an earlier answer, whose text is in `content`"

_IGNORED_RULES = (
    _ignored("user", _TENANT, stays=True),
    _ignored("safety_identifier", _TENANT, stays=True),
    _ignored("metadata", _NOT_STORED, stays=True),
    _ignored("store", _NOT_STORED, stays=True),
    _ignored("service_tier", "there is one", stays=True),
    _ignored("prediction", "only speeds an answer up"),
    _ignored("prompt_cache_key", _CACHES, stays=True),
    _ignored("prompt_cache_options", _CACHES, stays=True),
    _ignored("prompt_cache_retention", _CACHES, stays=True),
    _ignored("session_id", _CACHES, stays=True),
    _ignored("cache_prompt", _CACHES, stays=True),
    _ignored("request_id", "send the header `x-request-id`: the answer repeats it", stays=True),
    _ignored("stream_interval", "each token is sent at once"),
    _ignored("parallel_tool_calls", "only with `tools`"),
    _ignored("length_penalty", _BEAMS),
    _ignored("early_stopping", _BEAMS),
    _ignored("spaces_between_special_tokens", "only without `skip_special_tokens`"),
    _ignored("truncation_side", "only with `truncate_prompt_tokens`"),
    _ignored("return_tokens_as_token_ids", "only with `logprobs`"),
    _ignored("guided_decoding_backend", _GUIDED),
    _ignored("guided_whitespace_pattern", _GUIDED),
    _ignored("routed_experts_prompt_start", "only where experts are reported"),
    _ignored("return_token_offsets", _RENDERING),
    _ignored("return_mm_kwargs", _RENDERING, stays=True),
    _ignored("name", "chat templates of vision models have no place for it", Place.MESSAGE),
    _ignored("tool_call_id", "only with the role `tool`", Place.MESSAGE),
    _ignored("annotations", _EARLIER, Place.MESSAGE),
    _ignored("reasoning", _EARLIER, Place.MESSAGE),
    _ignored("reasoning_content", _EARLIER, Place.MESSAGE),
    _ignored("prompt_cache_breakpoint", _CACHES, Place.PART),
    _ignored("filename", "the upload has one", Place.FILE),
)

_REFUSED_RULES = (
    _refused("n", "ask once for each answer", 1, stays=True),
    _refused("best_of", "ask once for each answer", 1, stays=True),
    _refused("use_beam_search", "set 'temperature' to 0 for the most probable answer", False, stays=True),
    _refused("tools", _NO_TOOLS, []),
    _refused("functions", _NO_TOOLS, []),
    _refused("tool_choice", _NO_TOOLS, "none", "auto"),
    _refused("function_call", _NO_TOOLS, "none", "auto"),
    _refused("logprobs", _NO_LOGPROBS, False),
    _refused("top_logprobs", _NO_LOGPROBS, 0),
    _refused("prompt_logprobs", _NO_LOGPROBS, stays=True),
    _refused("logprob_token_ids", _NO_LOGPROBS, []),
    _refused("response_format", _NO_GRAMMAR, {"type": "text"}),
    _refused("structured_outputs", _NO_GRAMMAR, {}),
    _refused("guided_json", _NO_GRAMMAR, {}),
    _refused("guided_regex", _NO_GRAMMAR, ""),
    _refused("guided_choice", _NO_GRAMMAR, []),
    _refused("guided_grammar", _NO_GRAMMAR, ""),
    _refused("structural_tag", _NO_GRAMMAR, ""),
    _refused("logit_bias", "tokens are chosen by the sampling fields alone", {}),
    _refused("logits_processors", _CODE, [], stays=True),
    _refused("bad_words", "tokens are chosen by the sampling fields alone", []),
    _refused("allowed_token_ids", "tokens are chosen by the sampling fields alone"),
    _refused("stop_token_ids", "name what they stand for in 'stop'", []),
    _refused("include_stop_str_in_output", "the answer ends before the stop string", False),
    _refused("skip_special_tokens", "special tokens never become text", True),
    _refused("truncate_prompt_tokens", "a prompt that does not fit is refused; leave out messages"),
    _refused("repetition_detection", "use 'repetition_penalty' and 'max_completion_tokens'", {}),
    _refused("watermarking", "answers carry no watermark", False),
    _refused("reasoning_effort", "say in a message how long to think"),
    _refused("thinking_token_budget", "limit the whole answer by 'max_completion_tokens'"),
    _refused("include_reasoning", "what the model writes is sent as it is", True),
    _refused("verbosity", "say in a message how long the answer shall be", "medium"),
    _refused("echo", "prepend the message yourself", False),
    _refused("add_generation_prompt", _TEMPLATE, True),
    _refused("continue_final_message", _TEMPLATE, False),
    _refused("add_special_tokens", _TEMPLATE, False),
    _refused("chat_template", _TEMPLATE, stays=True),
    _refused("chat_template_kwargs", _TEMPLATE, {}),
    _refused("documents", "put documents into a message", []),
    _refused("media_io_kwargs", f"limits are the server's; {_DETAIL}", {}, stays=True),
    _refused("cache_salt", _IDENTITY, stays=True),
    _refused("priority", "turns are fair between tenants, and nobody may ask for an earlier one", 0, stays=True),
    _refused("kv_transfer_params", _TRANSFER, {}, stays=True),
    _refused("ec_transfer_params", _TRANSFER, {}, stays=True),
    _refused("custom_logit_processor", _CODE, stays=True),
    _refused("extra_key", _IDENTITY, stays=True),
    _refused("rid", "send the header `x-request-id`: the answer repeats it", stays=True),
    _refused("session_params", _TRANSFER, stays=True),
    _refused("disaggregated_params", _TRANSFER, stays=True),
    _refused("bootstrap_host", _PLACE, stays=True),
    _refused("bootstrap_port", _PLACE, stays=True),
    _refused("bootstrap_room", _PLACE, stays=True),
    _refused("data_parallel_rank", _PLACE, stays=True),
    _refused("id_slot", _PLACE, -1, stays=True),
    _refused("lora_path", "ask for a model of `GET /v1/models`", stays=True),
    _refused("vllm_xargs", "there are no extensions that read it", {}),
    _refused("return_token_ids", "the answer is text alone", False),
    _refused("return_prompt_text", _TEMPLATE, False),
    _refused("audio", _NO_SOUND, stays=True),
    _refused("modalities", _NO_SOUND, ["text"], stays=True),
    _refused("moderation", "moderate the answer yourself"),
    _refused("web_search_options", "search yourself and put what you found into a message"),
    _refused("continuous_usage_stats", _USAGE, False, place=Place.STREAM_OPTIONS, stays=True),
    _refused("include_obfuscation", _NO_PADDING, False, place=Place.STREAM_OPTIONS, stays=True),
    _refused("tool_calls", _NO_TOOLS, [], place=Place.MESSAGE),
    _refused("function_call", _NO_TOOLS, place=Place.MESSAGE),
    _refused("tools", _NO_TOOLS, [], place=Place.MESSAGE),
    _refused("refusal", "send it as 'content'", "", place=Place.MESSAGE),
    _refused("audio", _NO_SOUND, place=Place.MESSAGE, stays=True),
    _refused("do_image_splitting", _PROCESSOR, place=Place.PROCESSOR, stays=True),
    _refused("file_data", _AS_PAGES, place=Place.FILE, stays=True),
    _refused("uuid", _IDENTITY, place=Place.PART, stays=True),
    _refused("content_hash", _IDENTITY, place=Place.IMAGE_URL, stays=True),
    _refused("max_dynamic_patch", _DETAIL, place=Place.IMAGE_URL, stays=True),
    _refused("max_long_side_pixel", _DETAIL, place=Place.IMAGE_URL, stays=True),
)

RULES = (*_ACCEPTED_RULES, *_IGNORED_RULES, *_REFUSED_RULES)

_ACCEPTED = {place: {rule.name for rule in _ACCEPTED_RULES if rule.place is place} for place in Place}
_REFUSED = {place: {rule.name: rule for rule in _REFUSED_RULES if rule.place is place} for place in Place}
_REFUSED_AND_STAY = {place: {name: rule for name, rule in _REFUSED[place].items() if rule.stays} for place in Place}
_STAY = {
    place: {rule.name for rule in RULES if rule.place is place and (rule.stays or rule.fate is Fate.ACCEPTED)}
    for place in Place
}

_AS_TEXT = "send it as a part of type 'text'"
_AS_PICTURE = "send a part of type 'image_url' with a data: URL"
_AS_FRAMES = "send its frames as parts of type 'image_url', each after a text with its time"

PART_TYPES = {
    rule.name: rule
    for rule in (
        PartTypeRule("video_url", _AS_FRAMES),
        PartTypeRule("video", _AS_FRAMES),
        PartTypeRule("input_audio", _NO_SOUND),
        PartTypeRule("audio_url", _NO_SOUND),
        PartTypeRule("audio_embeds", _NO_SOUND),
        PartTypeRule("image", _AS_PICTURE),
        PartTypeRule("image_pil", _AS_PICTURE),
        PartTypeRule("image_embeds", _AS_PICTURE),
        PartTypeRule("input_file", _AS_PAGES),
        PartTypeRule("input_text", _AS_TEXT),
        PartTypeRule("output_text", _AS_TEXT),
        PartTypeRule("refusal", _AS_TEXT),
        PartTypeRule("thinking", "leave the thoughts of earlier answers out"),
    )
}
"""Type of a refused content part → what to send instead."""
