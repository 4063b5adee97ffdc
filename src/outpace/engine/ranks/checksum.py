"""Whether ranks still choose the same tokens: a running checksum over the outcomes of all forwards."""

from __future__ import annotations

import zlib
from collections import deque

from outpace.engine.ticket import Ticket

EVERY = 64
"""Forwards between two comparisons."""


class Checksum:
    """Takes tickets in the order in which forwards were enqueued, read or not.

    Args:
        num_ahead: forwards that may be in flight: a ticket is looked at once so many came behind it.
    """

    def __init__(self, num_ahead: int) -> None:
        self._waiting: deque[Ticket] = deque()
        self._num_ahead = num_ahead
        self._value = self._count = 0

    def add(self, ticket: Ticket) -> tuple[int, int] | None:
        """(number of forwards, their checksum) when it is time to compare; waits for the forward before the last."""
        self._waiting.append(ticket)
        if len(self._waiting) <= self._num_ahead:
            return None
        oldest = self._waiting.popleft()
        if oldest.done is not None:
            oldest.done.synchronize()
        chosen = oldest.chosen.outcome_BC[: len(oldest.plan.rows)]
        self._value = zlib.crc32(chosen.contiguous().numpy().tobytes(), self._value)
        self._count += 1
        return (self._count, self._value) if self._count % EVERY == 0 else None
