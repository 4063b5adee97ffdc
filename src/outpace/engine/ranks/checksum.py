"""Whether ranks still choose the same tokens: a running checksum over the outcomes of all forwards."""

from __future__ import annotations

import zlib
from collections import deque
from threading import Lock

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


class Comparison:
    """What the first rank's checksums are held against, whichever rank comes first; from any thread.

    Args:
        num_others: ranks beside the first.
    """

    def __init__(self, num_others: int) -> None:
        self._num_others = num_others
        self._own: dict[int, tuple[int, int]] = {}
        """Checksums of the first rank, and how many others have been compared with each, by number of forwards."""
        self._early: deque[tuple[int, int, int]] = deque()
        self._lock = Lock()

    def add_own(self, num_forwards: int, checksum: int) -> list[int]:
        """The first rank's; which of those that came before it differ."""
        with self._lock:
            self._own[num_forwards] = (checksum, 0)
            early, self._early = self._early, deque()
        return [rank for rank, *seen in early if self.differs(rank, *seen)]

    def differs(self, rank: int, num_forwards: int, checksum: int) -> bool:
        """Whether another rank's is not the first one's; not yet, if that is still to come."""
        with self._lock:
            found = self._own.get(num_forwards)
            if found is None:
                self._early.append((rank, num_forwards, checksum))
                return False
            own, num_compared = found
            self._own[num_forwards] = (own, num_compared + 1)
            if num_compared + 1 == self._num_others:
                del self._own[num_forwards]
        return own != checksum
