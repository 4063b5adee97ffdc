"""Looking for what comes, over and over, instead of sleeping until it comes.

That takes a core of its own, and whoever shares it waits. It is for a machine that has cores to spare, and whose host
puts those that wait to sleep. Both processes do it: the HTTP side's event loop has a `Looking`, the engine's process
calls `look`.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


def look(poll: Callable[[int], list[T]], until: float) -> list[T]:
    """What `poll`, which is told to wait for nothing, finds first; empty if that is nothing until then.

    Args:
        poll: takes how long it may wait.
        until: a time of the monotonic clock; it looks once at least.
    """
    found = poll(0)
    while not found and monotonic() < until:
        found = poll(0)
    return found


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
            return super().select(timeout)
        return look(super().select, inf if timeout is None else monotonic() + timeout)
