"""Whether what a forward raised, it raised on every rank at the same place.

If so, no rank waits for another, all are in the same state, and they go on: the step has failed, as it would on a rank
alone. If not, some rank waits for sums that will never be whole, and the group ends.

A place is (forwards begun, collectives begun). One within a collective is nobody else's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

from outpace.distributed.group import Calls
from outpace.engine.ranks.orders import Raised
from outpace.errors import EngineError

SECONDS_TO_AGREE = 10.0
"""How long ranks that raise may do so after one another."""
_LOOK_S = 0.02

Place = tuple[int, int]


def is_fatal(error: Exception, calls: Calls) -> bool:
    """Whether what a forward raised ends its rank, whatever the others did: it has no place, or is the group's end."""
    return calls.begun != calls.ended or isinstance(error, EngineError)


class Failures:
    """The first rank's view. One thread for each of the others calls `weigh`, the one that runs forwards `why_alone`.

    Args:
        num_others: ranks beside the first.
        place: where the first rank stands.
        ended: set when the group has ended.
    """

    def __init__(self, num_others: int, place: Callable[[], Place], ended: Event) -> None:
        self._num_others, self._place, self._ended = num_others, place, ended
        self._raised: dict[int, Raised] = {}
        """By rank, what was not decided on yet."""

    def weigh(self, rank: int, raised: Raised) -> str | None:
        """Why another rank's error is the group's; None if it is the step's alone, or the group has ended anyway."""
        self._raised[rank] = raised
        deadline = time.monotonic() + SECONDS_TO_AGREE
        while not self._ended.wait(_LOOK_S):
            here = self._place()  # looked at first: the first rank decides before it gets further
            if rank not in self._raised:
                return None
            if here > _place_of(raised) or time.monotonic() > deadline:
                return f"{raised.message}; rank 0 had no such error there"
        return None

    def why_alone(self) -> str | None:
        """Where the first rank raised: why the others did not do so alike; None if they did, and are told so next."""
        here, deadline = self._place(), time.monotonic() + SECONDS_TO_AGREE
        while len(self._raised) < self._num_others and time.monotonic() < deadline:
            if self._ended.wait(_LOOK_S):
                break
        for rank in range(1, 1 + self._num_others):
            raised = self._raised.get(rank)
            if raised is None:
                return f"rank {rank} had no error there"
            if _place_of(raised) != here:
                return f"rank {rank} raised elsewhere in the forward: {raised.message}"
        self._raised.clear()
        return None


def _place_of(raised: Raised) -> Place:
    return raised.num_forwards, raised.num_collectives
