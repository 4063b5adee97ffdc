"""What the next cycle of a batch would bring and take, for each k: what control weighs."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.wording import count_of


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

    def reason(self, k: int) -> str:
        """What speaks for or against a k, in words."""
        even, tokens = self.seconds[k] / self.seconds[0], self.tokens[k] / self.num_rows
        return (
            f"k {k} would emit {tokens:.2f} tokens a cycle and breaks even at {even:.2f} "
            f"({count_of(self.num_rows, 'row')}, {count_of(self.context // self.num_rows, 'token')} each)"
        )
