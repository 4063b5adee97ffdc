"""Large bodies: how many values they hold is counted before one of them is made, and they are read beside the loop.

Python's lock is held while JSON is read and checked, in whatever thread: everybody's streams wait meanwhile. So a large
body is counted, read and checked in a thread and in pieces, one body at a time. Long texts are cheap, values are not: a
body's limit in bytes has room for millions of them, which would take seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

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
    """A route whose requests have bounded bodies, which are not kept once they are read: an answer may take minutes."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle, turn = super().get_route_handler(), asyncio.Semaphore(1)

        async def bounded(request: Request) -> Response:
            try:
                return await handle(_Bounded(request.scope, request.receive, self._checked, turn))
            except HTTPException as error:  # FastAPI's own word for whatever the reading of a body raises
                if isinstance(error.__cause__, ApiError | RequestValidationError):
                    raise error.__cause__ from None
                raise

        return bounded

    def _checked(self, value: Any) -> Any:
        """The model that this route takes; FastAPI leaves it as it is.

        Raises:
            RequestValidationError: the value is none.
        """
        assert self.body_field is not None
        made, errors = self.body_field.validate(value, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=value)
        return made


class _Bounded(Request):
    """Its body can be read once.

    Args:
        checked: makes of a JSON value what the route takes.
        turn: to read a large body; several at a time would hold the loop up the longer.
    """

    def __init__(self, scope: Any, receive: Any, checked: Callable[[Any], Any], turn: asyncio.Semaphore) -> None:
        super().__init__(scope, receive)
        self._checked, self._turn = checked, turn

    async def body(self) -> bytes:
        self._whole = b"".join([part async for part in self.stream()])
        return self._whole

    async def json(self) -> Any:
        body, self._whole = self._whole, b""
        if len(body) <= LARGE:
            return json.loads(body)
        async with self._turn:
            return await asyncio.to_thread(lambda: self._checked(_read(body)))


def _read(body: bytes) -> Any:
    check_shape(body)
    try:
        return read(body)
    except msgspec.DecodeError as error:
        said = str(error).partition(" (byte ")[0]  # of a piece, not of the body
        raise json.JSONDecodeError(said, "", 0) from None  # which FastAPI knows
    except TooManyValues as error:
        raise _too_many("values in a list of more than numbers", error.found, MAX_MIXED) from None


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
