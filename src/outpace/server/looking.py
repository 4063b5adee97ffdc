"""An event loop that looks for what comes, over and over, instead of sleeping until it comes.

That takes a core of its own, and whoever shares it waits. It is for a machine that has cores to spare, and whose host
puts those that wait to sleep; the engine's process does the same meanwhile, see `wire.Start.awake`.
"""

from __future__ import annotations

import selectors
from math import inf
from time import monotonic


class Looking(selectors.DefaultSelector):
    """A selector for an event loop: sleeps as any does, until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = False

    def wake(self) -> None:
        self.looks = True

    def rest(self) -> None:
        self.looks = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is there, once something is or the time is over; None is no end, 0 and less at once."""
        if not self.looks or (timeout is not None and timeout <= 0):
            return list(super().select(timeout))
        until = inf if timeout is None else monotonic() + timeout
        found = super().select(0)
        while not found and monotonic() < until:
            found = super().select(0)
        return list(found)
