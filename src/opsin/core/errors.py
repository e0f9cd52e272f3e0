"""Every failure opsin can answer with, and its fate on the wire.

    OpsinError
    ├── ConfigError            start-up only, never on the wire
    ├── InvalidRequest 400     protocol, gateway, prompt: the body is wrong
    │   ├── ContextLengthExceeded, UnsupportedParameter
    │   ├── BodyTooLarge 413, BodyTooSlow 408
    │   └── MediaError 400     media, vision: one picture is wrong or refused
    │       ├── InvalidDataUrl, MediaSourceForbidden, TooManyImages
    │       ├── MediaTooLarge 413
    │       ├── UnsupportedMediaType 415
    │       └── MediaUndecodable 422
    ├── Unauthorized 401, NotFound 404, MethodNotAllowed 405
    ├── Overloaded 503         admission: try again later
    ├── DeadlineExceeded 504   the request as a whole took too long
    └── EngineError 503        the engine died, is loading, or answered nonsense
        ├── EngineOutOfMemory  KV cache or device memory is short; the engine goes on
        └── EngineFault 500    a bug of ours in the engine: sending the request again cannot help

An error carries its status, its OpenAI ``type`` and ``code``, the request field it concerns and whether a retry can
help. Official SDKs retry 408, 409, 429 and 5xx by themselves, so bad media never gets one of those. Messages name the
limit and the value; they never hold payloads, paths, addresses or text of a library.
"""

from __future__ import annotations

from typing import ClassVar


class OpsinError(Exception):
    """Root of all errors that opsin raises on purpose; anything else that escapes is a bug and answers 500."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(OpsinError):
    """The settings, the model folder or the machine do not allow a start."""

    default_code = "config_error"


class InvalidRequest(OpsinError):
    """The request is wrong as sent; sending it again cannot help."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_request"


class UnsupportedParameter(InvalidRequest):
    """A field that opsin knows and does not serve, named so that nothing is silently ignored."""

    default_code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output do not fit into ``max_model_len``."""

    default_code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    """The request body is over its byte limit; seen while reading, before any parsing."""

    status = 413
    default_code = "request_too_large"


class BodyTooSlow(InvalidRequest):
    """The request body did not arrive in time. SDKs would retry a 408; ``x-should-retry`` tells them not to."""

    status = 408
    default_code = "request_body_timeout"


class MediaError(InvalidRequest):
    """One picture of the request cannot be used."""

    default_code = "invalid_media"


class InvalidDataUrl(MediaError):
    """A ``data:`` URL outside the one documented grammar."""

    default_code = "invalid_data_url"


class MediaSourceForbidden(MediaError):
    """The operator does not allow this source; the message names the flag that would."""

    default_code = "media_url_blocked"


class TooManyImages(MediaError):
    """More pictures than ``limit_mm_per_prompt`` allows."""

    default_code = "too_many_images"


class MediaTooLarge(MediaError):
    """Too many bytes, pixels, or too long a side; known from the header, before any pixel is decoded."""

    status = 413
    default_code = "media_too_large"


class UnsupportedMediaType(MediaError):
    """The bytes are of a format that is not accepted."""

    status = 415
    default_code = "unsupported_image_format"


class MediaUndecodable(MediaError):
    """The bytes claim an accepted format and do not decode as it."""

    status = 422
    default_code = "image_undecodable"


class Unauthorized(OpsinError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class NotFound(OpsinError):
    """No such route or model."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowed(OpsinError):
    """The route exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class Overloaded(OpsinError):
    """The server is full; the request was not started."""

    status = 503
    type = "overloaded_error"
    default_code = "overloaded"
    retryable = True


class DeadlineExceeded(OpsinError):
    """The answer was not complete at the request's deadline; what it held is free again."""

    status = 504
    type = "timeout_error"
    default_code = "deadline_exceeded"


class EngineError(OpsinError):
    """The engine cannot answer this request."""

    status = 503
    type = "engine_error"
    default_code = "engine_unavailable"
    retryable = True


class EngineOutOfMemory(EngineError):
    """Memory was short for this request; others go on, and a later try may find room."""

    default_code = "engine_out_of_memory"


class EngineFault(EngineError):
    """The engine failed on this request in a way that nobody foresaw; its log has the traceback."""

    status = 500
    type = "server_error"
    default_code = "engine_internal_error"
    retryable = False
