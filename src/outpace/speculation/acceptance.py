"""How often drafts are accepted, by their place in the cycle, with the past fading.

The chance at place i is conditional: that draft i stands, given that all before it did. So a cycle that was refused at
place 2 says something about places 0 to 2 and nothing about those behind.

Control asks for a whole batch before every cycle, so each estimate is one small array and a batch is a few operations.

Shapes: B requests, K places; R = 2·K, how often each place was reached, then how often its draft stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

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

    __slots__ = ("_cycles", "_fading", "seen_R")

    def __init__(self, max_k: int, half_life: float) -> None:
        self._fading = 0.5 ** (1.0 / half_life)
        self._cycles = _cycles(max_k)
        self.seen_R: Array = np.zeros(2 * max_k)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """One cycle. What is known of places that it did not reach fades too, so that they are tried again."""
        self.seen_R *= self._fading
        self.seen_R += self._cycles[num_drafts, num_accepted]

    def add_all(self, cycles: Sequence[tuple[int, int]]) -> None:
        """As `add` for one (drafts, accepted) after another, at once."""
        if len(cycles) < 8:
            for num_drafts, num_accepted in cycles:
                self.add(num_drafts, num_accepted)
        else:
            drafts, accepted = np.array(cycles).T
            fading = self._fading ** np.arange(len(cycles) - 1, -1, -1)
            self.seen_R *= self._fading ** len(cycles)
            self.seen_R += fading @ self._cycles[drafts, accepted]

    def fade(self, left: float) -> None:
        """Makes what was seen count less."""
        self.seen_R *= left

    def rates(self) -> list[float]:
        """Chance at each place that a draft is accepted if those before it were; the place before is its prior."""
        reached_K, stood_K = self.seen_R.reshape(2, -1).tolist()
        rates: list[float] = []
        for reached, stood in zip(reached_K, stood_K, strict=True):
            rates.append((stood + STRENGTH * (rates[-1] if rates else GUESS)) / (reached + STRENGTH))
        return rates


@cache
def _cycles(max_k: int) -> Array:
    """What a cycle adds to what is seen, [drafts, accepted, R]."""
    drafts, accepted, places = np.ogrid[: max_k + 1, : max_k + 1, :max_k]
    reached = places < np.minimum(drafts, accepted + 1)
    stood = (places < accepted) & reached
    return np.concatenate((reached, stood), axis=2).astype(np.float64)


def batch_tokens(seen: Sequence[Array], limits: Sequence[int], prior: Sequence[float]) -> list[float]:
    """Tokens that a cycle of 0, 1, 2, … drafts for all requests together emits, one a request at least.

    Args:
        seen: B arrays [R], each request's own.
        limits: drafts that each takes at most.
        prior: chance at each place to believe before much was seen of a request.
    """
    stands_BK = _stands(seen, limits, prior)
    tokens: list[float] = (len(seen) + stands_BK.sum(axis=0).cumsum()).tolist()
    return [float(len(seen)), *tokens]


def expected(seen: Sequence[Array], num_drafts: Sequence[int], prior: Sequence[float]) -> Array:
    """How many of its drafts each request is expected to accept, [B]; the arguments are as `batch_tokens`'."""
    found: Array = _stands(seen, num_drafts, prior).sum(axis=1)
    return found


def _stands(seen: Sequence[Array], limits: Sequence[int], prior: Sequence[float]) -> Array:
    """Chance that all drafts up to each place stand, [B, K]; 0 behind a request's limit."""
    num_places = len(prior)
    seen_BR = np.concatenate(seen).reshape(-1, 2 * num_places)
    rates_BK = (seen_BR[:, num_places:] + STRENGTH * np.asarray(prior)) / (seen_BR[:, :num_places] + STRENGTH)
    stands_BK: Array = rates_BK.cumprod(axis=1)
    if min(limits) < num_places:
        stands_BK *= np.arange(num_places) < np.asarray(limits)[:, None]
    return stands_BK
