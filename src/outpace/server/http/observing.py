"""The outermost layer: every request gets an id, a place in the metrics, and as a rule one log line at its end."""

from __future__ import annotations

import asyncio
import re
import secrets
from time import monotonic, time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outpace.server.monitoring.logs import tell
from outpace.server.monitoring.metrics import Metrics
from outpace.server.monitoring.recent import Recent

KEY = "outpace.facts"
ID_HEADER = b"x-request-id"
QUIET = ("/", "/health", "/ready", "/metrics", "/v1/outpace/state")
"""Asked every few seconds by machines: no log line but for what is refused or fails. A 503 is neither: what it comes
from has lines of its own."""
ANSWERED = ("/v1/chat/completions", "/v1/completions")
DIGITS = 6
"""Of seconds: what a server adds are fractions of a millisecond."""
SHOWN = 200
"""Characters of a method or path that the log repeats."""
_GOOD_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)


class Facts(dict[str, Any]):
    """What the log says of one request."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id=request_id)
        self.begun = monotonic()
        self.first_token: float | None = None

    def note_first_token(self, sent: float, engine_s: float | None) -> None:
        """The first token came; later calls change nothing.

        Args:
            sent: when the engine was sent the answer that it is of.
            engine_s: seconds of `first_token` that were the engine's.
        """
        if self.first_token is None:
            self.first_token = monotonic() - self.begun
            told = {"first_token_s": self.first_token, "sent_s": sent - self.begun, "engine_s": engine_s}
            self.update({name: round(seconds, DIGITS) for name, seconds in told.items() if seconds is not None})


def facts_of(scope: Scope) -> Facts:
    """Those of the request that this scope belongs to."""
    facts: Facts = scope[KEY]
    return facts


class Observing:
    """ASGI middleware.

    Args:
        app: what it is around.
        metrics: told of every request.
        recent: told of those for answers.
        routes: paths that are counted by their name; all others are counted as one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, recent: Recent, routes: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._recent = recent
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = scope[KEY] = Facts(_request_id(scope))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (ID_HEADER, facts["request_id"].encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # what uvicorn does to those that are left when the server ends
            facts["error"] = "the server was shut down"
            raise
        finally:
            self._note(scope, facts, status)

    def _note(self, scope: Scope, facts: Facts, status: int) -> None:
        seconds = monotonic() - facts.begun
        path = scope["path"] if scope["path"] in self._routes else "other"
        self._metrics.note_request(path, status, seconds, facts.first_token)
        if path in ANSWERED and status != 401:  # strangers do not push out what was answered
            self._recent.note(time(), path, status, seconds, facts)
        if path not in QUIET or (status >= 400 and status != 503):
            method, said = scope["method"][:SHOWN], scope["path"][:SHOWN]
            line = {"method": method, "path": said, "status": status, "seconds": round(seconds, DIGITS)}
            tell("request", line | facts)


def _request_id(scope: Scope) -> str:
    """The client's own, if it is harmless, or a new one."""
    given = dict(scope["headers"]).get(ID_HEADER, b"")
    return given.decode() if _GOOD_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
