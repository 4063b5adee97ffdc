"""Control: how many tokens the next cycle drafts, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Drafting(Protocol):
    """What control sees of a request."""

    max_k: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A chosen k, and the reason in words."""

    k: int
    why: str


class Control(Protocol):
    """Chooses k for a batch."""

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        """The k for the next cycle of these requests."""
        ...


@dataclass(frozen=True, slots=True)
class FixedControl:
    """Always the same k, whatever it costs."""

    k: int

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        return Decision(self.k, "fixed")
