"""Which k would be fastest, from how often drafts stand and from what cycles cost. Arithmetic alone: no torch.

The chance at a place is conditional: that the draft there stands, given that all before it did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from outpace.config import MAX_K
from outpace.errors import ConfigError
from outpace.lab.breakeven.balance import MOST_S, check_figure


def accept_lengths(acceptance: Sequence[float]) -> list[float]:
    """Tokens that a cycle of 0, 1, 2, … drafts emits; `acceptance` is the chance at each place."""
    return list(accumulate(accumulate(acceptance, mul), initial=1.0))


def even_acceptance(accept_length: float, k: int) -> float:
    """The one chance, the same at all k places, that gives an accept length; found by halving."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if accept_lengths([middle] * k)[-1] < accept_length else (low, middle)
    return (low + high) / 2.0


def check_acceptance(acceptance: Sequence[float]) -> None:
    """Raises:
    ConfigError: there are none or too many places, or a chance lies outside 0 … 1.
    """
    if not 1 <= len(acceptance) <= MAX_K:
        raise ConfigError(f"acceptance has {len(acceptance)} places; give 1 … {MAX_K}")
    for place, chance in enumerate(acceptance, start=1):
        check_figure(f"acceptance at place {place}", chance, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one k comes to, for one stream."""

    k: int
    accept_length: float
    cycle_ms: float
    plain_ms: float

    @property
    def tok_s(self) -> float:
        return 1e3 * self.accept_length / self.cycle_ms

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.accept_length * self.plain_ms / self.cycle_ms

    def as_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return {
            "k": self.k,
            "accept_length": round(self.accept_length, 3),
            "cycle_ms": round(self.cycle_ms, 3),
            "tok_s": round(self.tok_s, 2),
            "ratio": round(self.speedup, 4),
        }


def best(choices: Sequence[Choice]) -> Choice:
    """The fastest; of equally fast ones the smallest k."""
    return max(choices, key=lambda choice: (choice.tok_s, -choice.k))


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Milliseconds by k: straight lines between the points that are known, and nothing said outside of them."""

    points: Mapping[int, float]

    def __post_init__(self) -> None:
        for k, ms in self.points.items():
            if not 0 <= k <= MAX_K:
                raise ConfigError(f"a cost is given for k {k}; k lies in 0 … {MAX_K}")
            check_figure(f"cost of k {k}", ms, 0.0, 1e3 * MOST_S)

    def at(self, k: int) -> float | None:
        """None beyond the largest known k."""
        known = sorted(self.points)
        place = bisect_left(known, k)
        if place == len(known):
            return None
        above = known[place]
        if above == k:
            return self.points[k]
        below = known[place - 1]
        part = (k - below) / (above - below)
        return self.points[below] * (1.0 - part) + self.points[above] * part


def choices(
    acceptance: Sequence[float], verify: CostCurve, draft: CostCurve, *, other_ms: float, plain_ms: float
) -> list[Choice]:
    """Every k whose costs are known, plain decoding first. Both curves hold k = 0."""
    found = [Choice(k=0, accept_length=1.0, cycle_ms=plain_ms, plain_ms=plain_ms)]
    for k, tokens in list(enumerate(accept_lengths(acceptance)))[1:]:
        verify_ms, draft_ms = verify.at(k), draft.at(k)
        if verify_ms is not None and draft_ms is not None:
            cycle_ms = verify_ms + draft_ms + other_ms
            found.append(Choice(k=k, accept_length=tokens, cycle_ms=cycle_ms, plain_ms=plain_ms))
    return found
