"""Errors as OpenAI's API words them: `{"error": {"message", "type", "param", "code"}}` with a fitting status."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from outpace.errors import OutpaceError, RequestError
from outpace.server.engine_client.jobs import BrokenRequest, QueueFull, TooSlow, Unavailable
from outpace.server.http.known_fields import known_fields
from outpace.server.http.observing import facts_of
from outpace.wording import nearest

DEFECT = "internal_error"
"""The code of what should not be."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: for people.
        code: for machines.
        param: the field that is wrong.
        retry_after: seconds after which the same request may work.
        headers: more of the answer's headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": str(self), "type": _kind(self.status), "param": self.param, "code": self.code},
        }

    def response(self) -> Response:
        headers = self.headers if self.retry_after is None else self.headers | {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        # Escaped to ASCII: a message may quote what is no Unicode text.
        body = json.dumps(self.body()).encode()
        return Response(body, self.status, headers, "application/json")


def _kind(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 503:
            return "overloaded_error"
        case _:
            return "invalid_request_error" if status < 500 else "server_error"


def of(error: Exception) -> ApiError:
    """What an error of ours is to a client."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, str(error), code="invalid_value")
        case QueueFull(retry_after=seconds):
            return ApiError(503, str(error), code="queue_full", retry_after=seconds)
        case Unavailable(code=code):
            return ApiError(503, str(error), code=code, retry_after=1)
        case TooSlow():
            return ApiError(408, str(error), code="slow_reader")
        case BrokenRequest():
            return ApiError(500, str(error), code="request_failed")
        case TimeoutError():
            return ApiError(
                504, "the request took longer than the server allows: see --request-timeout", code="timeout"
            )
        case _:
            return ApiError(500, f"{type(error).__name__} in the server; its log says more", code=DEFECT)


def no_object() -> ApiError:
    """There is no body, or it is said or found to be something else than a JSON object."""
    said = "the body must be a JSON object, sent with Content-Type: application/json"
    return ApiError(400, said, code="invalid_json")


def of_wrong(errors: Sequence[Mapping[str, Any]], body: Any, model: Any) -> ApiError:
    """The first thing that is wrong with a body, by name.

    Args:
        errors: pydantic's.
        body: the JSON value that was sent.
        model: what it was to be.
    """
    if not isinstance(body, dict):
        return no_object()
    # Of the members of a union, the one that a value came furthest in is the one that was meant; then one of its type.
    first = max(errors, key=lambda one: (len(_steps(one["loc"][1:], body)), not one["type"].endswith("_type")))
    param = _path(first["loc"][1:], body, missing=first["type"] == "missing")
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        param += "." + first["ctx"]["discriminator"].strip("'")
    if first["type"] == "extra_forbidden":
        *_, name = location = first["loc"][1:]
        meant = nearest(str(name), known_fields(model, location, body))
        said = f"{param} is not supported by this server; leave it out{f', or did you mean {meant}?' if meant else ''}"
        return ApiError(400, said, code="unsupported_parameter", param=param)
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing", code="missing_required_parameter", param=param)
    value = first["input"][:60] if isinstance(first["input"], str) else first["input"]
    shown = f" is {value!r:.60}" if isinstance(value, str | int | float) else ""
    return ApiError(400, f"{param or 'the body'}{shown}: {first['msg']}", code="invalid_value", param=param or None)


def of_http(error: HTTPException, request: Request, paths: Collection[str]) -> ApiError:
    """What FastAPI and Starlette refuse before a route is reached; `paths` are those that there are."""
    path = f"{request.url.path!r:.100}"
    match error.status_code:
        case 404:
            said = f"there is no {path} here; this server has {', '.join(sorted(paths))}"
            return ApiError(404, said, code="not_found")
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            said = f"{path} takes {allowed}, not {request.method:.20}"
            return ApiError(405, said, code="method_not_allowed", headers=error.headers)
    return ApiError(error.status_code, str(error.detail), code="invalid_request", headers=error.headers)


def _path(location: Sequence[int | str], body: Any, *, missing: bool) -> str:
    """`messages[0].content` out of where pydantic saw an error."""
    steps = _steps(location, body)
    if missing and steps[-1:] != list(location[-1:]):  # it may be there as null, which is as good as missing
        steps += location[-1:]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")[:200]


def _steps(location: Sequence[int | str], body: Any) -> list[int | str]:
    """The way to a value in the body: `location` without the names of union members that pydantic mixes in."""
    steps: list[int | str] = []
    for part in location:
        inside = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if inside or (isinstance(body, dict) and part in body):
            steps.append(part)
            body = body[part]
    return steps


def told(error: Exception, scope: Scope) -> ApiError:
    """What an error of ours is to a client, and to the log line of its request."""
    refusal = of(error)
    facts_of(scope)["error"] = str(refusal)
    return refusal


def install(app: FastAPI, paths: Collection[str]) -> None:
    """Every error that FastAPI comes to leaves in this form; of `paths` clients are told that ask for another."""

    async def ours(request: Request, error: Exception) -> Response:
        return told(error, request.scope).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return told(of_http(error, request, paths), request.scope).response()

    app.add_exception_handler(ApiError, ours)
    app.add_exception_handler(OutpaceError, ours)
    app.add_exception_handler(TimeoutError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, ours)  # uvicorn logs the traceback
