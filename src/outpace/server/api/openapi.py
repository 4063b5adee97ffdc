"""The OpenAPI document: FastAPI's, with what it cannot know: ranges that lie in `SamplingParams`, answers that are
written past it, errors of this API's form, and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from outpace.config import MAX_BAD_WORD, MAX_BIAS, SAMPLING_INTEGERS, SAMPLING_REALS
from outpace.server.api import replies
from outpace.server.asking.sampling import FIELDS

Schema = dict[str, Any]
JSON, HTML, TEXT, EVENTS = "application/json", "text/html", "text/plain", "text/event-stream"

ALWAYS = (408, 413, 415, 500)
"""Any request may have a body that is too slow, too large or compressed, and any may meet a defect."""
ASKING = (400, 404, 503, 504)
ERRORS = {
    400: "What was sent is wrong; `param` names the field.",
    401: "No valid key came.",
    404: "There is no such model.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is compressed.",
    500: "A defect, or a request that made the engine fail.",
    503: "The queue is full, or no engine runs; Retry-After says when to try again.",
    504: "The request took longer than the server allows.",
}
OPEN = ("/", "/health", "/ready")

REPLIES: dict[str, tuple[type[BaseModel] | None, dict[str, str], tuple[int, ...]]] = {
    "/v1/chat/completions": (replies.ChatReply, {EVENTS: "with stream: true"}, ASKING),
    "/v1/completions": (replies.CompletionReply, {EVENTS: "with stream: true"}, ASKING),
    "/tokenize": (replies.TokenizeReply, {}, (400, 404, 503)),
    "/detokenize": (replies.DetokenizeReply, {}, (400, 404)),
    "/v1/models": (replies.Models, {}, ()),
    "/v1/models/{name}": (replies.Model, {}, (404,)),
    "/health": (replies.HealthReply, {}, ()),
    "/ready": (replies.ReadyReply, {}, ()),
    "/v1/outpace/state": (replies.StateReply, {}, ()),
    "/metrics": (None, {TEXT: "Prometheus' text format"}, ()),
    "/": (None, {HTML: "the status page"}, ()),
}
"""By path: the JSON of a success, its other forms, and the errors that it may end with beside `ALWAYS`."""


def install(app: FastAPI, *, wants_key: bool) -> None:
    """Makes the application describe itself so.

    Args:
        app: with all its routes.
        wants_key: a key must come with whatever is not open.
    """
    made = app.openapi

    def document() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(made(), wants_key=wants_key)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _completed(document: Schema, *, wants_key: bool) -> Schema:
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    models = [model for model, *_ in REPLIES.values() if model is not None] + [replies.ErrorReply]
    _, made = models_json_schema([(model, "serialization") for model in models], ref_template=_ref("{model}"))
    schemas |= made["$defs"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"] = _responses(path, wants_key=wants_key)
            if wants_key and path not in OPEN:
                operation["security"] = [{"key": []}]
    if wants_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for schema in schemas.values():
        _bound(schema)
        _with_nulls(schema)
        _without_discriminators(schema)
    return document


def _with_nulls(schema: Schema) -> None:
    """In a request's objects null may stand for whatever may be left out, and under any name: see `strict`."""
    if schema.get("additionalProperties") is not False:
        return
    schema["additionalProperties"] = {"type": "null"}
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


def _without_discriminators(schema: Any) -> None:
    """Each branch names its values, and several of one branch (roles) are more than some readers of these expect."""
    if isinstance(schema, dict):
        schema.pop("discriminator", None)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _without_discriminators(part)


def _ref(name: str) -> str:
    return f"#/components/schemas/{name}"


def _responses(path: str, *, wants_key: bool) -> Schema:
    model, forms, errors = REPLIES[path]
    content: Schema = {form: {"schema": _described(form, what)} for form, what in forms.items()}
    if model is not None:
        content = {JSON: {"schema": {"$ref": _ref(model.__name__)}}} | content
    key = (401,) if wants_key and path not in OPEN else ()
    found = {"200": {"description": "Success", "content": content}}
    for status in sorted({*errors, *ALWAYS, *key}):
        found[str(status)] = {
            "description": ERRORS[status],
            "content": {JSON: {"schema": {"$ref": _ref("ErrorReply")}}},
        }
    if path in ("/health", "/ready"):
        found["503"] = {"description": "Not so now", "content": content}
    return found


def _described(form: str, what: str) -> Schema:
    """What is no JSON; of a stream, each of its events."""
    if form != EVENTS:
        return {"type": "string", "description": what}
    data = {"type": "string", "description": "a chunk as JSON, an error, or at the end [DONE]"}
    return {"type": "object", "description": what, "properties": {"data": data}, "required": ["data"]}


def _bound(schema: Schema) -> None:
    """Adds the ranges of a request's fields."""
    ranges = dict(_ranges())
    for name, field in schema.get("properties", {}).items():
        for part in (field, *field.get("anyOf", ())):
            if part.get("type") in ("integer", "number") and name in ranges and "minimum" not in part:
                low, high = ranges[name]
                part |= {"minimum": low, "maximum": high}
            match name, part.get("type"):
                case "logit_bias", "object":
                    part["propertyNames"] = {"pattern": "^[0-9]{1,10}$"}
                    part["additionalProperties"] |= {"minimum": -MAX_BIAS, "maximum": MAX_BIAS}
                case "bad_words", "array":
                    part["items"]["maxItems"] = MAX_BAD_WORD
                case "top_k", "integer":
                    part["minimum"] = -1
                case "stop_token_ids", "array":
                    part["items"]["minimum"] = 0


def _ranges() -> Iterator[tuple[str, tuple[float, float]]]:
    """By the client's names, those of `SamplingParams`' fields."""
    known: dict[str, tuple[float, float]] = {**SAMPLING_INTEGERS, **SAMPLING_REALS}
    names = {name: field for name, (field, _) in FIELDS.items()}
    names |= {"max_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "max_k": "max_k"}
    names |= {"logprobs": "logprobs", "top_logprobs": "logprobs"}
    for name, field in names.items():
        if field in known:
            yield name, known[field]
