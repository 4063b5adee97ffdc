"""What a request must pass before anything is made of it: room, a key, and a bounded body that comes in time."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outpace.server.http.api_errors import ApiError
from outpace.server.http.connections import CROWDED
from outpace.server.http.incoming import MALFORMED
from outpace.server.http.observing import facts_of

OPEN = ("/", "/health", "/ready")
"""Answered without a key: the status page holds nothing until it has shown one."""
BODY_SECONDS = 60.0
ALL_BODIES = 256 << 20
"""Bytes of bodies that are not there yet, above which none may grow that has its share."""
SHARE = 256 << 10


class Guard:
    """ASGI middleware.

    Args:
        app: what it is around.
        keys: of which one must come; without any, everybody may ask.
        max_body_bytes: of a request.
    """

    def __init__(self, app: ASGIApp, keys: Collection[bytes], max_body_bytes: int) -> None:
        self._app = app
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._coming = 0
        """Bytes of bodies that are not there yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_form(scope)
            _check_room(scope)
            self._check_key(scope)
            _check_encoding(scope)
            asked = _replay(await self._body(scope, receive), receive)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        except asyncio.CancelledError:  # uvicorn's doing, when the server ends
            late = ApiError(503, "the server was shut down before the body came", code="draining", retry_after=1)
            await _refuse(late, scope, receive, send)
            return
        if asked is not None:
            await self._app(scope, asked, send)

    def _check_key(self, scope: Scope) -> None:
        if not self._keys or scope["path"] in OPEN:
            return
        given = _header(scope, b"authorization")
        scheme, _, key = given.partition(b" ")
        # Every key is compared, and each in constant time: how long it takes tells nothing about any of them.
        right = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        if scheme.lower() != b"bearer" or not any(right):
            raise ApiError(401, "no valid key came: send `Authorization: Bearer KEY`", code="invalid_api_key")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of it; None if the client went away meanwhile."""
        declared = _header(scope, b"content-length")
        if declared.isdigit() and int(declared[:20]) > self._max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    _check_form(scope)
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    body += part
                    self._coming += len(part)
                    self._check_size(len(body))
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {BODY_SECONDS:g} s", code="timeout") from None
        finally:
            self._coming -= len(body)

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise self._too_large()
        if size > SHARE and self._coming > ALL_BODIES:
            raise ApiError(
                503,
                f"bodies of {self._coming} bytes are on their way, and more than {ALL_BODIES} are not held: try again "
                "later, or send less",
                code="too_many_bodies",
                retry_after=1,
            )

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is above {self._max_body_bytes} bytes: see --max-body-bytes", code="body_too_large"
        )


def _check_form(scope: Scope) -> None:
    if (why := scope.get("state", {}).get(MALFORMED)) is not None:
        raise ApiError(400, f"what came is no HTTP request: {why}", code="invalid_http")


def _check_encoding(scope: Scope) -> None:
    for name, taken in (("Content-Encoding", ("", "identity")), ("Transfer-Encoding", ("", "chunked"))):
        encoding = _header(scope, name.lower().encode()).decode("latin-1").strip()
        if encoding.lower() not in taken:
            raise ApiError(415, f"the body's {name} is {encoding!r:.40}: send it as it is", code="unsupported_encoding")


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = dict(scope["headers"]).get(name, b"")
    return found


def _replay(body: bytes | None, receive: Receive) -> Receive | None:
    """First the body, which is not kept, then whatever comes: the end of the connection. None without a body."""
    if body is None:
        return None
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    facts_of(scope)["error"] = str(error)
    await error.response()(scope, receive, send)


def _check_room(scope: Scope) -> None:
    if CROWDED in scope.get("state", ()) and scope["path"] not in OPEN:
        raise ApiError(
            503,
            "all connections of this server are being answered: try again later; see --max-connections",
            code="too_many_connections",
            retry_after=1,
            headers={"Connection": "close"},
        )
