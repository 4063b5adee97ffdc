"""Histories of any length in bounded memory: neighbours are merged, and keep what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Generic, Protocol, Self, TypeVar

T = TypeVar("T", bound="Joinable")
MOST_KEPT = 512
"""Windows, and profiles, of one run; with more, neighbours are merged."""


class Joinable(Protocol):
    """What neighbours of its kind can be merged with."""

    def join(self, later: Self) -> Self: ...


class Series(Generic[T]):
    """A history of any length in at most `MOST_KEPT` items, each of as many entries as the others.

    Once there are too many, neighbours are merged in pairs, and what follows is merged likewise before it is kept.
    """

    def __init__(self) -> None:
        self.count = 0
        """Entries that went in."""
        self._kept: list[T] = []
        self._stride = 1
        self._waiting: T | None = None
        self._num_waiting = 0

    @property
    def items(self) -> list[T]:
        """In order; the last may hold fewer entries than the others."""
        return self._kept if self._waiting is None else [*self._kept, self._waiting]

    def add(self, new: T) -> None:
        self.count += 1
        self._num_waiting += 1
        self._waiting = new if self._waiting is None else self._waiting.join(new)
        if self._num_waiting < self._stride:
            return
        self._kept.append(self._waiting)
        self._waiting, self._num_waiting = None, 0
        if len(self._kept) == MOST_KEPT:
            self._kept = [a.join(b) for a, b in zip(self._kept[::2], self._kept[1::2], strict=True)]
            self._stride *= 2


def joined(items: Sequence[T]) -> T | None:
    """Several as one; None of none."""
    return reduce(lambda a, b: a.join(b), items) if items else None
