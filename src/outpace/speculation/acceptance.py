"""How often drafts are accepted, by their place in the cycle, with the past fading.

The chance at place i is conditional: that draft i stands, given that all before it did. So a cycle that was refused at
place 2 says something about places 0 to 2 and nothing about those behind.
"""

from __future__ import annotations

GUESS = 0.6
"""Chance at place 0 before anything was seen: what a drafter that fits its target reaches at least."""
STRENGTH = 4.0
"""How many cycles a guess weighs against those that were seen."""


class Acceptance:
    """Running estimate for one request, or for all of them.

    Args:
        max_k: places.
        half_life: cycles after which one counts half.
        prior: what to believe before much was seen; None guesses.
    """

    __slots__ = ("_accepted", "_fading", "_prior", "_reached")

    def __init__(self, max_k: int, half_life: float, prior: Acceptance | None = None) -> None:
        self._fading = 0.5 ** (1.0 / half_life)
        self._prior = prior
        self._reached = [0.0] * max_k
        self._accepted = [0.0] * max_k

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """One cycle. What is known of places that it did not reach fades too, so that they are tried again."""
        for place in range(len(self._reached)):
            reached = place < min(num_drafts, num_accepted + 1)
            self._reached[place] = self._reached[place] * self._fading + reached
            self._accepted[place] = self._accepted[place] * self._fading + (reached and place < num_accepted)

    def rate(self, place: int) -> float:
        """Chance that the draft at a place is accepted if those before it were."""
        prior = self._prior.rate(place) if self._prior is not None else self.rate(place - 1) if place else GUESS
        return (self._accepted[place] + STRENGTH * prior) / (self._reached[place] + STRENGTH)

    def expected(self, k: int) -> float:
        """Tokens that a cycle of k drafts emits, 1 … k+1."""
        total = chance = 1.0
        for place in range(min(k, len(self._reached))):
            chance *= self.rate(place)
            total += chance
        return total
