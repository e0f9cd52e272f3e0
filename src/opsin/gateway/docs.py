"""``/openapi.json`` and ``/docs``: the API described by the models that validate it. No scripts, no remote assets."""

from __future__ import annotations

import functools
import html
import json
from typing import Any

from opsin import __version__
from opsin.protocol.fields import RULES, Fate
from opsin.protocol.request import ChatCompletionRequest

_ROUTES = (
    ("POST", "/v1/chat/completions", 'Answer a conversation with pictures; streams with "stream": true'),
    ("POST", "/v1/tokens", "What such a request would cost, and whether it fits; nothing is decoded"),
    ("POST", "/v1/files", "Upload a picture as multipart/form-data, purpose vision; parts may name it by file_id"),
    ("GET", "/v1/files", "Uploaded files; /v1/files/{id} is one, /v1/files/{id}/content what is in it"),
    ("DELETE", "/v1/files/{id}", "Delete a file, and with the last one all that was made of its picture"),
    ("DELETE", "/v1/media/{sha256}", "Delete a picture from every cache"),
    ("DELETE", "/v1/tenants/{tenant}/media", "Delete all pictures of a tenant"),
    ("GET", "/v1/models", "Served models with their resolved revisions"),
    ("GET", "/health", "The process is alive"),
    ("GET", "/ready", "Requests can be answered; 503 with a reason otherwise"),
    ("GET", "/metrics", "Prometheus metrics"),
    ("GET", "/version", "Version of opsin"),
    ("GET", "/openapi.json", "This API as OpenAPI 3.1"),
)

_EXAMPLE = """v1/chat/completions -H 'content-type: application/json' -d '{
  "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…", "detail": "high"}},
    {"type": "text", "text": "What is the total?"}]}]}'"""


@functools.cache
def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    schema = ChatCompletionRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions: dict[str, Any] = schema.pop("$defs", {})
    definitions["ChatCompletionRequest"] = schema
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletionRequest"}}}}
    paths: dict[str, Any] = {}
    for method, path, summary in _ROUTES:
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "OK"}}}
        if method == "POST" and path != "/v1/files":
            operation["requestBody"] = body
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "opsin", "version": __version__},
        "paths": paths,
        "components": {"schemas": definitions},
    }


def page(base_url: str) -> str:
    """One self-contained HTML page. ``base_url`` is where the reader found this server, with a ``/`` behind."""
    routes = "".join(f"<tr><td>{m}</td><td><code>{p}</code></td><td>{html.escape(s)}</td></tr>" for m, p, s in _ROUTES)
    fields = ChatCompletionRequest.model_json_schema()["properties"]
    rows = "".join(
        f"<tr><td><code>{name}</code></td><td><code>{html.escape(_kind(field))}</code></td></tr>"
        for name, field in fields.items()
    )
    refused = ", ".join(f"<code>{rule.path}</code>" for rule in RULES if rule.fate is Fate.REFUSED)
    return (
        "<!doctype html><meta charset=utf-8><title>opsin API</title>"
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td{padding:.15rem 1rem .15rem 0;vertical-align:top}pre{background:#f4f4f4;padding:1rem;overflow:auto}</style>"
        f"<h1>opsin {__version__}</h1><table>{routes}</table><h2>Chat request</h2><table>{rows}</table>"
        f"<p>Refused by name: {refused}.</p><h2>Example</h2><pre>{html.escape(f'curl {base_url}{_EXAMPLE}')}</pre>"
    )


def _kind(field: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in field.items() if key not in ("title", "description")})
