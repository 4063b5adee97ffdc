"""What the next cycle of a batch would bring and take, for each k: what control weighs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.wording import break_even, count_of, every_cycle_pays


@dataclass(frozen=True, slots=True)
class Weighed:
    """What one k would bring and what it would have to: above its break-even it pays."""

    k: int
    accept_length: float
    """Tokens a cycle and row, as expected from the drafts seen so far; rows that do not draft are among them."""
    break_even: float
    """Its cycle time ÷ plain step time, at the batch and the context that were decided on."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "k": self.k,
            "accept_length": round(self.accept_length, 4),
            "break_even": round(self.break_even, 4),
            "every_cycle_pays": every_cycle_pays(self.break_even),
        }

    def __str__(self) -> str:
        tokens, even = f"{self.accept_length:.2f} tokens a cycle", break_even(self.break_even)
        return f"k {self.k} would emit {tokens} and breaks even at {even}"


@dataclass(frozen=True, slots=True)
class Prospect:
    """Tokens and seconds of the next cycle, by k."""

    num_rows: int
    context: int
    tokens: dict[int, float]
    """Of the whole batch."""
    seconds: dict[int, float]

    def speed(self, k: int) -> float:
        """Tokens a second."""
        return self.tokens[k] / self.seconds[k]

    def loss(self, k: int) -> float:
        """Of one cycle against plain decoding of the same tokens, in plain steps."""
        return max(0.25, self.seconds[k] / self.seconds[0] - self.tokens[k] / self.num_rows)

    def weighed(self, k: int) -> Weighed:
        """What speaks for or against a k."""
        return Weighed(k, self.tokens[k] / self.num_rows, self.seconds[k] / self.seconds[0])

    def reason(self, k: int) -> str:
        """The same in words."""
        rows, tokens = count_of(self.num_rows, "row"), count_of(self.context // self.num_rows, "token")
        return f"{self.weighed(k)} ({rows}, {tokens} each)"
