"""Control: what is told and asked of whoever chooses how many tokens the next cycle drafts; and a fixed choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outpace.speculation.acceptance import Acceptance
from outpace.speculation.prospect import Weighed


class Drafting(Protocol):
    """What control sees of a request."""

    max_k: int
    num_cached: int

    @property
    def num_left(self) -> int:
        """Tokens that it may still be given; drafts behind them bring nothing."""
        ...

    @property
    def masked(self) -> bool:
        """Its tokens are chosen under a grammar."""
        ...

    acceptance: Acceptance | None


@dataclass(frozen=True, slots=True)
class Decision:
    """A chosen k, and the reason in words."""

    k: int
    why: str
    weighed: Weighed | None = None
    """The k that `why` speaks of; None where nothing was weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSeen:
    """A cycle that is over."""

    num_rows: int
    k: int
    context: int
    """Tokens of all rows together."""
    num_emitted: int
    """Tokens that reach users; of a row that has ended meanwhile one, as if it were a plain step."""
    seconds: float
    """From the end of the forward before it, host included."""
    touched: int | None = None
    """Experts that it touched, over all layers, if the target is a mixture."""
    masked: bool = False
    """Some row was under a grammar: nothing ran ahead, and the host made masks."""


class Control(Protocol):
    """Chooses k for a batch."""

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        """The k for the next cycle of these requests."""
        ...

    def fills_drafter(self) -> bool:
        """Whether a prompt that comes in now is made ready for drafts; if not, a catch-up does it when they pay."""
        ...

    def start(self) -> Acceptance | None:
        """What a new request's acceptance is kept in."""
        ...

    def learn(self, request: Drafting, num_drafts: int, num_accepted: int) -> None:
        """What one request's drafts came to in a cycle."""
        ...

    def observe(self, seen: CycleSeen) -> None:
        """What a cycle cost."""
        ...

    def pay(self, num_rows: int, context: int, seconds: float) -> None:
        """Time went into a catch-up, which plain decoding does not need."""
        ...

    def describe(self) -> dict[str, Any]:
        """What it knows and decided, as plain data for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class FixedControl:
    """Always the same k, whatever it costs."""

    k: int

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        return Decision(self.k, "fixed")

    def fills_drafter(self) -> bool:
        return self.k > 0

    def start(self) -> Acceptance | None:
        return None

    def learn(self, request: Drafting, num_drafts: int, num_accepted: int) -> None:
        pass

    def observe(self, seen: CycleSeen) -> None:
        pass

    def pay(self, num_rows: int, context: int, seconds: float) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"kind": "fixed", "k": self.k}
