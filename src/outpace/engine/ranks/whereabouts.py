"""What each rank is doing, by its own word: where some hang, it says which is behind, since when, and in what.

A follower's beat comes from a thread of its own, so it says where a rank stands that does not get on. Behind is who
has begun the fewest forwards and collectives: the others wait for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from outpace.distributed.group import Calls
from outpace.engine.ranks.orders import Beat
from outpace.wording import count_of

WAITING = "waiting for an order"
JOINING = "joining the others"


class Progress:
    """A rank's own: what it does now, and since when. One thread writes, another one reads."""

    def __init__(self) -> None:
        self.device = ""
        self.calls = Calls()
        """Of the group, once the rank has joined it."""
        self.num_tensors = 0
        """Loaded."""
        self.num_forwards = 0
        self._doing, self._since = "starting", time.monotonic()
        self._at: tuple[float, ...] = ()
        self._at_since = self._since
        """Where it was at the last beat, and since when."""

    def begin(self, doing: str) -> None:
        """It does something else from now on."""
        self._doing, self._since = doing, time.monotonic()

    def took_a_tensor(self) -> None:
        """It has loaded one more."""
        self.num_tensors += 1

    def beat(self) -> Beat:
        """As it is now. Whether it gets on shows from call to call."""
        now = time.monotonic()
        at = (self._since, self.num_tensors, self.num_forwards, self.calls.begun, self.calls.ended)
        if at != self._at:
            self._at, self._at_since = at, now
        return Beat(
            host=socket.gethostname(),
            pid=os.getpid(),
            device=self.device,
            doing=self._doing,
            seconds=now - self._since,
            still=now - self._at_since,
            num_tensors=self.num_tensors,
            num_forwards=self.num_forwards,
            begun=self.calls.begun,
            ended=self.calls.ended,
        )


class Whereabouts:
    """The first rank's view of all.

    Args:
        own: how the first rank is.
    """

    def __init__(self, own: Callable[[], Beat]) -> None:
        self._own = own
        self._heard: dict[int, tuple[Beat, float]] = {}
        """By rank, the last beat and when it came."""

    def note(self, rank: int, beat: Beat) -> None:
        """A beat came."""
        self._heard[rank] = beat, time.monotonic()

    def still(self, rank: int) -> float:
        """Seconds in which a rank did not get on with what it was told, by its own word."""
        beat, _ = self._heard.get(rank, (Beat(), 0.0))
        return 0.0 if beat.doing == WAITING else beat.still

    def of(self, rank: int) -> str:
        """Of a rank that fell silent; nothing if it was never heard."""
        if rank not in self._heard:
            return ""
        beat, when = self._heard[rank]
        return f"{time.monotonic() - when:.0f} s ago it had {_said(beat)}"

    def of_all(self) -> str:
        """One after another, those behind first."""
        now = time.monotonic()
        each = [(0, self._own(), 0.0), *((rank, beat, now - when) for rank, (beat, when) in self._heard.items())]
        each.sort(key=lambda one: (one[1].num_forwards, one[1].begun, one[0]))
        return "; ".join(
            f"rank {rank} has {_said(beat)}{f', heard {ago:.0f} s ago' if ago >= 2.0 else ''}"
            for rank, beat, ago in each
        )


def _said(beat: Beat) -> str:
    if beat.begun > beat.ended:
        collectives = f"within its collective {beat.begun}"
    else:
        collectives = f"after its collective {beat.ended}"
    where = f"process {beat.pid} on {beat.host}" + (f", {beat.device}" if beat.device else "")
    at = f"forward {beat.num_forwards}" if beat.num_forwards else f"{count_of(beat.num_tensors, 'tensor')} loaded"
    return f"been {beat.doing} for {beat.seconds:.0f} s ({where}; {at}, {collectives})"
