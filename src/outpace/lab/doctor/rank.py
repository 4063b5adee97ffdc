"""What one rank of a server printed while a log was read: its windows by batch size, and what it had counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from outpace.lab.doctor.evidence import Window
from outpace.lab.doctor.series import Series

MOST_SIZES = 64
"""Batch sizes of a rank that are kept; windows of further ones are left out."""


@dataclass(slots=True)
class Size:
    """Windows of one batch size."""

    steady: Series[Window] = field(default_factory=Series)
    unsteady: Series[Window] = field(default_factory=Series)

    @property
    def best(self) -> list[Window]:
        return self.steady.items or self.unsteady.items

    @property
    def count(self) -> int:
        return self.steady.count + self.unsteady.count


@dataclass(slots=True)
class Rank:
    """What one rank printed."""

    sizes: dict[int, Size] = field(default_factory=dict)
    first: dict[int, Window] = field(default_factory=dict)
    last_running: int = 0
    last_tokens: int | None = None
    disturbed: bool = True
    """A prefill, or idle time, since its last window."""
    counted: tuple[int, int] = (0, 0)

    def add(self, window: Window, running: int, *, steady: bool) -> None:
        if running not in self.sizes and len(self.sizes) >= MOST_SIZES:
            return
        size = self.sizes.setdefault(running, Size())
        self.first.setdefault(running, window)
        (size.steady if steady else size.unsteady).add(window)

    @property
    def count(self) -> int:
        return sum(size.count for size in self.sizes.values())


@dataclass(slots=True)
class Rates:
    """Accept rates as printed, and the accept lengths beside them."""

    rate: float = 0.0
    length: float = 0.0
    count: int = 0

    def add(self, rate: float, length: float) -> None:
        self.rate, self.length, self.count = self.rate + rate, self.length + length, self.count + 1

    @property
    def means(self) -> tuple[float, float] | None:
        return (self.rate / self.count, self.length / self.count) if self.count else None
