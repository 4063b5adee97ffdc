"""Connections whose clients neither ask nor take are closed: uvicorn itself waits for both as long as it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""From a connection's begin, or the first byte of a later request, until the request's head is there. One that has been
answered and asks nothing more is closed by uvicorn, after `timeout_keep_alive`."""
LEAST_TAKEN = 64 << 10
"""Bytes of an answer that is written that its client must take in so many seconds, for as long as there is more."""


class Connection(H11Protocol):
    """One of HTTP, with limits to how long a request's head may take, and to how slowly an answer's rest is taken."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asks, self._since, self._untaken = True, self.loop.time(), 0
        self._watch: asyncio.TimerHandle = self.loop.call_later(HEAD_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._asks:
            self._asks, self._since = True, self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._asks, self._since, self._untaken = False, self.loop.time(), self.transport.get_write_buffer_size()
        super().on_response_complete()

    def _look(self) -> None:
        now, before, self._untaken = self.loop.time(), self._untaken, self.transport.get_write_buffer_size()
        if self._may_go_on(before):
            self._since = now
        if (left := self._since + HEAD_SECONDS - now) <= 0:
            self.transport.abort()
        else:
            self._watch = self.loop.call_later(left, self._look)

    def _may_go_on(self, untaken_before: int) -> bool:
        """The server is the one who is waited for, or its client takes what was written, or may rest."""
        if self.transport.is_closing() or (self._untaken and not self._asks):
            return untaken_before > 0 and self._untaken <= max(0, untaken_before - LEAST_TAKEN)
        being_answered = self.cycle is not None and not self.cycle.response_complete
        return being_answered or not self._asks
