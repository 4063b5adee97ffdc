"""Routes whose requests have bodies, which answer by themselves, and what a large body may hold.

FastAPI has such a route for its document. What it would do itself between a request and its endpoint takes as long as
all that is done here before the engine is asked.

Python's lock is held while JSON is read and checked, in whatever thread: everybody's streams wait meanwhile. So how
many values a large body holds is counted before one of them is made, and it is counted, read and checked in a thread
and in pieces, one body at a time. Long texts are cheap, values are not: a body's limit in bytes has room for millions
of them, which would take seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from outpace.server.http import api_errors
from outpace.server.http.api_errors import ApiError
from outpace.server.http.pieces import MAX_MIXED, PIECE, TooManyValues, outside_texts, read

LARGE = 64 << 10
"""Bytes. Smaller bodies are read as they come: they have no room for many values."""
MAX_TEXTS = 1 << 16
"""Texts and names of fields."""
MAX_NESTED = 1 << 17
"""Objects and lists."""
MAX_VALUES = 1 << 20
"""Values of all kinds, as far as commas part them: token ids, above all."""


class BoundedRoute(APIRoute):
    """A route of a router whose bodies are bounded, and not kept once they are read: an answer may take minutes.

    An endpoint takes `body`, the model that its request must be, and `request` if it wants that; it returns a Response.
    Routes without a body are FastAPI's.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._wants_request = "request" in inspect.signature(self.endpoint).parameters
        self._turn = asyncio.Semaphore(1)
        """To read a large body; several at a time would hold the loop up the longer."""

    def takes(self, method: str) -> bool:
        """Whether `handle` answers this method's requests without FastAPI."""
        return self.body_field is not None and method in (self.methods or ())

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.takes(scope["method"]):
            await super().handle(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            response = await self._respond(Request(scope, receive))
            await response(scope, receive, noted)
        except Exception as error:
            if begun:
                raise
            refusal = api_errors.told(error, scope)
            await refusal.response()(scope, receive, send)
            if refusal.code == api_errors.DEFECT:
                raise  # uvicorn logs the traceback

    async def _respond(self, request: Request) -> Response:
        body = await self._read(request)
        made: Response = await (self.endpoint(body, request) if self._wants_request else self.endpoint(body))
        return made

    async def _read(self, request: Request) -> Any:
        """The model of a request.

        Raises:
            ApiError: the body is none.
        """
        body = b"".join([part async for part in request.stream()])
        if not body or not _is_json(request.headers.get("content-type", "")):
            raise api_errors.no_object()
        if len(body) <= LARGE:
            return self._checked(_value(body))
        async with self._turn:
            return await asyncio.to_thread(lambda: self._checked(_value(body)))

    def _checked(self, value: Any) -> Any:
        """The model that this route takes.

        Raises:
            ApiError: the value is none.
        """
        assert self.body_field is not None
        made, errors = self.body_field.validate(value, loc=("body",))
        if errors:
            raise api_errors.of_wrong(errors, value, self.body_field.field_info.annotation)
        return made


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _value(body: bytes) -> Any:
    """What a JSON text says.

    Raises:
        ApiError: it is none, or too much.
    """
    try:
        return json.loads(body) if len(body) <= LARGE else _large(body)
    except json.JSONDecodeError as error:
        raise _no_json(error.msg) from None
    except (ValueError, RecursionError):  # where Python's reader gives up
        said = "the body cannot be read: it is nested too deep, or holds a number that is too long"
        raise ApiError(400, said, code="invalid_json") from None


def _large(body: bytes) -> Any:
    check_shape(body)
    try:
        return read(body)
    except msgspec.DecodeError as error:
        raise _no_json(str(error).partition(" (byte ")[0]) from None  # of a piece, not of the body
    except TooManyValues as error:
        raise _too_many("values in a list of more than numbers", error.found, MAX_MIXED) from None


def _no_json(said: str) -> ApiError:
    return ApiError(400, f"the body is no JSON: {said}", code="invalid_json")


def check_shape(body: bytes) -> None:
    """Counts what a body holds, on a body that may be no JSON.

    Raises:
        ApiError: too much.
    """
    num_texts = (_count(body, b'"') - _count(body, b'\\"')) // 2
    _check("texts", num_texts, MAX_TEXTS)
    if _num_nested(body) > MAX_NESTED or _count(body, b",") > MAX_VALUES:
        counts = [(_num_nested(part), part.count(b",")) for part in outside_texts(body)]
        _check("objects and lists", sum(nested for nested, _ in counts), MAX_NESTED)
        _check("values", sum(commas for _, commas in counts), MAX_VALUES)


def _num_nested(part: bytes) -> int:
    return _count(part, b"[") + _count(part, b"{")


def _count(body: bytes, what: bytes) -> int:
    """Piece by piece; what begins in one may end in the next."""
    return sum(body.count(what, at, at + PIECE + len(what) - 1) for at in range(0, len(body), PIECE))


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise _too_many(what, found, most)


def _too_many(what: str, found: int, most: int) -> ApiError:
    return ApiError(400, f"the body holds {found} {what}; at most {most} are taken", code="too_many_values")
