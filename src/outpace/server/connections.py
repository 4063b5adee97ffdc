"""Connections that ask nothing are closed: uvicorn itself waits for a request's head as long as it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""From a connection's begin, or the end of what it asked before, until the head of its next request is there."""


class Connection(H11Protocol):
    """One of HTTP, with a limit to how long it may be between requests."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._free_since = self.loop.time()
        self._watch: asyncio.TimerHandle = self.loop.call_later(HEAD_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._free_since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        free = self.cycle is None or self.cycle.response_complete
        left = self._free_since + HEAD_SECONDS - self.loop.time() if free else HEAD_SECONDS
        if left <= 0:
            self.transport.abort()
        else:
            self._watch = self.loop.call_later(left, self._look)
