"""How often drafts are accepted, by their place in the cycle, with the past fading.

The chance at place i is conditional: that draft i stands, given that all before it did. So a cycle that was refused at
place 2 says something about places 0 to 2 and nothing about those behind.
"""

from __future__ import annotations

from collections.abc import Sequence

GUESS = 0.6
"""Chance at place 0 before anything was seen: what a drafter that fits its target reaches at least."""
STRENGTH = 4.0
"""How many cycles a guess weighs against those that were seen."""


class Acceptance:
    """Running estimate for one request, or for all of them.

    Args:
        max_k: places.
        half_life: cycles after which one counts half.
    """

    __slots__ = ("_accepted", "_fading", "_reached")

    def __init__(self, max_k: int, half_life: float) -> None:
        self._fading = 0.5 ** (1.0 / half_life)
        self._reached = [0.0] * max_k
        self._accepted = [0.0] * max_k

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """One cycle. What is known of places that it did not reach fades too, so that they are tried again."""
        for place in range(len(self._reached)):
            reached = place < min(num_drafts, num_accepted + 1)
            self._reached[place] = self._reached[place] * self._fading + reached
            self._accepted[place] = self._accepted[place] * self._fading + (reached and place < num_accepted)

    def rates(self, prior: Sequence[float] | None = None) -> list[float]:
        """Chance at each place that a draft is accepted if those before it were.

        Args:
            prior: what to believe of each place before much was seen; None takes the place before.
        """
        rates: list[float] = []
        for place, (reached, accepted) in enumerate(zip(self._reached, self._accepted, strict=True)):
            believed = prior[place] if prior is not None else rates[-1] if rates else GUESS
            rates.append((accepted + STRENGTH * believed) / (reached + STRENGTH))
        return rates


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Tokens that a cycle of 0, 1, 2, … drafts emits, 1 at least."""
    tokens, chance = [1.0], 1.0
    for rate in rates:
        chance *= rate
        tokens.append(tokens[-1] + chance)
    return tokens
