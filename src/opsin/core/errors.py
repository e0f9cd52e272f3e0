"""Every failure opsin can answer with, and its fate on the wire.

    OpsinError
    ├── ConfigError            start-up only, never on the wire
    ├── InvalidRequest 400     protocol, gateway, prompt: the body is wrong
    │   ├── ContextLengthExceeded, UnsupportedParameter
    │   ├── BodyTooLarge 413, FileQuotaExceeded 413, BodyTooSlow 408, HeadTooLarge 431
    │   └── MediaError 400     media, vision: one picture is wrong or refused
    │       ├── InvalidDataUrl, MediaSourceForbidden, TooManyImages
    │       ├── MediaTooLarge 413
    │       ├── UnsupportedMediaType 415
    │       └── MediaUndecodable 422
    ├── Unauthorized 401, Forbidden 403, NotFound 404, MethodNotAllowed 405
    ├── RateLimited 429        admission: this tenant has used up what is its own
    ├── Overloaded 503         admission: the server is full, try again later
    ├── DeadlineExceeded 504   the request as a whole took too long
    └── EngineError 503        the engine died, is loading, or answered nonsense
        ├── EngineOutOfMemory  KV cache or device memory is short; the engine goes on
        ├── UpstreamMisconfigured  the operator has to correct something first
        └── EngineFault 500    a bug of ours in the engine: sending the request again cannot help

An error carries its status, its OpenAI ``type`` and ``code``, the request field it concerns and whether a retry can
help. Official SDKs retry 408, 409, 429 and 5xx by themselves, so bad media never gets one of those. Messages name the
limit and the value; they never hold payloads, paths, addresses or text of a library. Codes are the table at the end.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import ClassVar, Self


class OpsinError(Exception):
    """Root of all errors that opsin raises on purpose; anything else that escapes is a bug and answers 500."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False
    not_begun: bool = False  # towards an engine: it certainly did nothing for the request, so another one may be asked
    replica: str | None = None  # of an engine's failure: which one of several it was

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or default_code(type(self))
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(OpsinError):
    """The settings, the model folder or the machine do not allow a start."""


class InvalidRequest(OpsinError):
    """The request is wrong as sent; sending it again cannot help."""

    status = 400
    type = "invalid_request_error"


class UnsupportedParameter(InvalidRequest):
    """A field that opsin knows and does not serve, named so that nothing is silently ignored."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output do not fit into ``max_model_len``."""


class BodyTooLarge(InvalidRequest):
    """The request body is over its byte limit; seen while reading, before any parsing."""

    status = 413


class FileQuotaExceeded(InvalidRequest):
    """A tenant's uploaded files leave no room for one more."""

    status = 413


class BodyTooSlow(InvalidRequest):
    """The request body did not arrive in time. SDKs would retry a 408; ``x-should-retry`` tells them not to."""

    status = 408


class HeadTooLarge(InvalidRequest):
    """Request line and headers are over their byte limit; seen while reading."""

    status = 431


class MediaError(InvalidRequest):
    """One picture of the request cannot be used."""


class InvalidDataUrl(MediaError):
    """A ``data:`` URL outside the one documented grammar."""


class MediaSourceForbidden(MediaError):
    """The operator does not allow this source. The message names the flag that would, but for addresses that are not
    public, where only the server's log does."""


class TooManyImages(MediaError):
    """More pictures than ``limit_mm_per_prompt`` allows, or more of them by URL than ``max_remote_images``."""


class MediaTooLarge(MediaError):
    """Too many bytes, pixels, or too long a side; known from the header, before any pixel is decoded."""

    status = 413


class UnsupportedMediaType(MediaError):
    """The bytes are of a format that is not accepted."""

    status = 415


class MediaUndecodable(MediaError):
    """The bytes claim an accepted format and do not decode as it."""

    status = 422


class Unauthorized(OpsinError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"


class Forbidden(OpsinError):
    """The key is good, and not for this."""

    status = 403
    type = "permission_error"


class NotFound(OpsinError):
    """No such route, model or file."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(OpsinError):
    """The route exists, the method does not."""

    status = 405
    type = "invalid_request_error"


class RateLimited(OpsinError):
    """The tenant has used up what it may use for now; others go on, and so can this one after ``Retry-After``."""

    status = 429
    type = "rate_limit_error"
    retryable = True


class Overloaded(OpsinError):
    """The server is full; the request was not started."""

    status = 503
    type = "overloaded_error"
    retryable = True


class DeadlineExceeded(OpsinError):
    """The answer was not complete at the request's deadline; what it held is free again."""

    status = 504
    type = "timeout_error"


class EngineError(OpsinError):
    """The engine cannot answer this request."""

    status = 503
    type = "engine_error"
    retryable = True


class EngineOutOfMemory(EngineError):
    """Memory was short for this request; others go on, and a later try may find room."""


class UpstreamMisconfigured(EngineError):
    """The upstream answers, and not us: sending the request again cannot help before the operator acts."""

    retryable = False


class EngineFault(EngineError):
    """The engine failed on this request in a way that nobody foresaw; its log has the traceback."""

    status = 500
    type = "server_error"
    retryable = False


class Code(StrEnum):
    """What went wrong, for programs: the word on the wire, the error that carries it, and what to do about it.

    The one place where a code is made; the first of an error's codes is its default. ``docs/errors.md`` is written from
    here by ``tools/error_table.py``.
    """

    error: type[OpsinError]
    remedy: str

    def __new__(cls, word: str, error: type[OpsinError], remedy: str) -> Self:
        code = str.__new__(cls, word)
        code._value_ = word
        code.error, code.remedy = error, remedy
        return code

    INTERNAL_ERROR = "internal_error", OpsinError, "a bug of ours: report it; the log has more under the request id"
    CONFIG_ERROR = "config_error", ConfigError, "change what the message names, then start again"

    INVALID_REQUEST = "invalid_request", InvalidRequest, "correct the field that `param` names"
    INVALID_JSON = "invalid_json", InvalidRequest, "send JSON in UTF-8"
    INVALID_UPLOAD = "invalid_upload", InvalidRequest, "send `multipart/form-data` with `purpose` and `file`"
    INVALID_DIGEST = "invalid_digest", InvalidRequest, "write `sha256:` and 64 lower-case hex digits"
    UNSUPPORTED_CONTENT_PART = "unsupported_content_part", InvalidRequest, "send what the message names instead"
    UNSUPPORTED_CONTENT_ENCODING = "unsupported_content_encoding", InvalidRequest, "send the body uncompressed"
    SPECIAL_TOKENS_IN_TEXT = "special_tokens_in_text", InvalidRequest, "leave out the special token at the named place"
    UPSTREAM_REFUSED = "upstream_refused", InvalidRequest, "correct what the upstream says in the message"
    UNSUPPORTED_PARAMETER = "unsupported_parameter", UnsupportedParameter, "do what the message says instead"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded", ContextLengthExceeded, "send less, or ask for fewer tokens"
    REQUEST_TOO_LARGE = "request_too_large", BodyTooLarge, "send smaller or fewer pictures"
    FILE_QUOTA_EXCEEDED = "file_quota_exceeded", FileQuotaExceeded, "delete files of `GET /v1/files`, or wait"
    REQUEST_HEADER_TOO_LARGE = "request_header_too_large", HeadTooLarge, "send fewer or shorter headers"
    REQUEST_BODY_TIMEOUT = "request_body_timeout", BodyTooSlow, "send the body faster or smaller"

    INVALID_MEDIA = "invalid_media", MediaError, "send another picture"
    INVALID_MEDIA_URL = "invalid_media_url", MediaError, "correct it as the message says, or send a `data:` URL"
    MEDIA_IN_WRONG_ROLE = "media_in_wrong_role", MediaError, "put the picture into a message of the user"
    MEDIA_FILE_UNREADABLE = "media_file_unreadable", MediaError, "in Python and `opsin ask` only: name a readable file"
    MEDIA_URL_UNREACHABLE = "media_url_unreachable", MediaError, "see that its server answers, with a right certificate"
    MEDIA_URL_TIMEOUT = "media_url_timeout", MediaError, "send the picture itself, or serve it faster"
    MEDIA_URL_STATUS = "media_url_status", MediaError, "name a URL that answers 200"
    MEDIA_URL_REDIRECT = "media_url_redirect", MediaError, "name the URL that it leads to"
    MEDIA_URL_ENCODING = "media_url_encoding", MediaError, "serve the picture without `Content-Encoding`"
    MEDIA_TYPE_MISMATCH = "media_type_mismatch", MediaError, "state the media type that the bytes have, or none"
    IMAGE_ASPECT_RATIO = "image_aspect_ratio", MediaError, "crop the picture, or cut it into several"
    TOO_MANY_IMAGE_TOKENS = "too_many_image_tokens", MediaError, "send a smaller picture, fewer, or `detail: low`"
    INVALID_DATA_URL = "invalid_data_url", InvalidDataUrl, "correct the URL at the offset that the message names"
    MEDIA_URL_BLOCKED = "media_url_blocked", MediaSourceForbidden, "send the picture as a `data:` URL"
    TOO_MANY_IMAGES = "too_many_images", TooManyImages, "send fewer pictures in one request"
    MEDIA_TOO_LARGE = "media_too_large", MediaTooLarge, "scale the picture down below the limit that the message names"
    UNSUPPORTED_IMAGE_FORMAT = "unsupported_image_format", UnsupportedMediaType, "convert it to JPEG, PNG, WebP or GIF"
    IMAGE_UNDECODABLE = "image_undecodable", MediaUndecodable, "the file is damaged: write it anew"
    IMAGE_TRUNCATED = "image_truncated", MediaUndecodable, "the file is cut: send all of it"
    IMAGE_DECODE_TIMEOUT = "image_decode_timeout", MediaUndecodable, "scale the picture down, or write it anew"
    IMAGE_DECODE_MEMORY = "image_decode_memory", MediaUndecodable, "scale the picture down, or write it anew"
    IMAGE_FEATURE_UNSUPPORTED = "image_feature_unsupported", MediaUndecodable, "convert it to a plain JPEG or PNG"

    INVALID_API_KEY = "invalid_api_key", Unauthorized, "send `Authorization: Bearer KEY`"
    ADMIN_KEY_NEEDED = "admin_key_needed", Forbidden, "use a key that was made with `opsin keys create --admin`"
    NOT_FOUND = "not_found", NotFound, "see `/docs` for the routes"
    MODEL_NOT_FOUND = "model_not_found", NotFound, "name a model of `/v1/models`, or none"
    FILE_NOT_FOUND = "file_not_found", NotFound, "upload it: it is another tenant's, deleted, expired, or never was"
    METHOD_NOT_ALLOWED = "method_not_allowed", MethodNotAllowed, "see `/docs` for the routes"

    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded", RateLimited, "wait for `Retry-After`; see `x-ratelimit-*`"
    TOO_MANY_IN_PROGRESS = "too_many_in_progress", RateLimited, "send fewer requests at once"
    OVERLOADED = "overloaded", Overloaded, "try again after `Retry-After`"
    QUEUE_TIMEOUT = "queue_timeout", Overloaded, "try again after `Retry-After`; the operator may raise `max_queue_s`"
    FILES_UNREACHABLE = "files_unreachable", Overloaded, "try again; the operator looks after Redis or the disk"
    SHUTTING_DOWN = "shutting_down", Overloaded, "try again, at another replica or after the restart"
    RENDER_WORKER_KILLED = "render_worker_killed", Overloaded, "try again; the operator gives the machine more memory"
    DEADLINE_EXCEEDED = "deadline_exceeded", DeadlineExceeded, "ask for fewer tokens, or raise `request_timeout_s`"

    ENGINE_UNAVAILABLE = "engine_unavailable", EngineError, "try again when `/ready` says so"
    ENGINE_DIED = "engine_died", EngineError, "try again; the engine restarts by itself"
    ENGINE_CLOSED = "engine_closed", EngineError, "try again after the restart"
    ENGINE_FEATURES_LOST = "engine_features_lost", EngineError, "try again; the pictures are encoded anew"
    ENGINE_TRUNCATED = "engine_truncated", EngineError, "try again; report it if it stays"
    ENGINE_DUPLICATE_ID = "engine_duplicate_id", EngineError, "a bug of ours: report it"
    ENGINE_START_TIMEOUT = "engine_start_timeout", EngineError, "at the start only: raise its `start_timeout_s`"
    REQUEST_CANCELLED = "request_cancelled", EngineError, "try again if the answer is still wanted"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable", EngineError, "try again; the operator looks after the upstream"
    UPSTREAM_TIMEOUT = "upstream_timeout", EngineError, "try again; the operator may raise `upstream.read_timeout_s`"
    UPSTREAM_TRUNCATED = "upstream_truncated", EngineError, "try again; the upstream broke its answer off"
    UPSTREAM_EMPTY = "upstream_empty", EngineError, "try again; the upstream's log says why there was no text"
    UPSTREAM_PROTOCOL = "upstream_protocol", EngineError, "the operator checks that `upstream.url` speaks OpenAI's API"
    UPSTREAM_ERROR = "upstream_error", EngineError, "try again; the upstream's log says what failed"
    UPSTREAM_UNAUTHORIZED = "upstream_unauthorized", UpstreamMisconfigured, "the operator corrects `upstream.api_key`"
    UPSTREAM_NOT_FOUND = (
        "upstream_not_found",
        UpstreamMisconfigured,
        "the operator corrects `upstream.url` and `upstream.model`",
    )
    ENGINE_OUT_OF_MEMORY = "engine_out_of_memory", EngineOutOfMemory, "try again, or send less"
    ENGINE_INTERNAL_ERROR = "engine_internal_error", EngineFault, "a bug of ours: report it; the engine's log has more"


@cache
def default_code(error: type[OpsinError]) -> Code:
    """The first code of the table that this error carries."""
    return next(code for code in Code if code.error is error)
