"""How many connections there may be, and how long their clients may take to ask and to take what they asked for.

uvicorn itself takes any number, and waits as long as it takes; its `limit_concurrency` refuses requests, health checks
too, but no connections. Here one too many takes the place of the one that has rested longest. Where none rests, it is
told so, unless it asks how the server is.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from outpace.errors import ConfigError
from outpace.server.http.incoming import Incoming

CROWDED = "outpace.crowded"
"""In a request's `state`: its connection is one too many."""
SPARE = 16
"""Connections beyond the limit that are still heard."""
BACKLOG = 512
"""Connections that come at once, before any of them is looked at; more wait in the kernel, or are to try again."""
OTHER_FILES = 64
"""Descriptors of this process for what is no connection."""
HEAD_SECONDS = 20.0
"""From a connection's begin, or the first byte of a later request, until the request's head is there. One that has been
answered and asks nothing more is closed by uvicorn, after `timeout_keep_alive`."""
LEAST_TAKEN = 64 << 10
"""Bytes of an answer that is written that its client must take in so many seconds, for as long as there is more."""


class Connection(Incoming):
    """One of HTTP, with limits to how long a request's head may take, and to how slowly an answer's rest is taken.

    `limit_concurrency` of uvicorn's settings is the number of connections.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asks, self._since, self._untaken = True, self.loop.time(), 0
        self._rests_since = self._since
        self._watch: asyncio.TimerHandle = self.loop.call_later(HEAD_SECONDS, self._look)
        if self._most is not None and len(self.connections) > self._most:
            self._find_room(self._most)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._asks:
            self._asks, self._since = True, self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._asks = self.is_answered  # the next one, which was here already
        self._since = self._rests_since = self.loop.time()
        self._untaken = self.transport.get_write_buffer_size()

    @property
    def _rests(self) -> bool:
        return not self.is_answered and not self.transport.get_write_buffer_size()

    def _find_room(self, most: int) -> None:
        open_now = [other for other in self.connections if not other.transport.is_closing()]
        if len(open_now) <= most:
            return
        resting = [other for other in open_now if isinstance(other, Connection) and other._rests]
        longest = min(resting, key=lambda other: (other is self, other._rests_since))
        num_others = len(open_now) - 1
        if longest is not self:
            longest.transport.abort()
            num_others -= 1
        if num_others >= most + SPARE:
            self.transport.abort()
        elif num_others >= most:
            self.app_state = self.app_state | {CROWDED: True}

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
        return self.is_answered or not self._asks


def reserve_descriptors(max_connections: int) -> None:
    """Lets this process open as many files as its connections take: what most systems grant at first is 1,024.

    Raises:
        ConfigError: it may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = SPARE + BACKLOG + OTHER_FILES
    wanted = max_connections + others
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            lower = f", or give a --max-connections of at most {hard - others}" if hard > others else ""
            raise ConfigError(
                f"max_connections is {max_connections}, for which the server may have to hold {wanted} files open; "
                f"its limit is {hard}: raise that one (ulimit -n){lower}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
