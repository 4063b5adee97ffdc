"""Variants measured in rounds: interleaved, compared within a round, and shown with their spread.

Every round runs every variant once, in mirrored order, so what slows the machine for a while slows all of them; a ratio
is taken within each round, and its interval says how far rounds disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb
from statistics import median
from typing import Any, TypeVar

from outpace.lab.timing.samples import CONFIDENCE, Interval, mirrored

V = TypeVar("V")
T = TypeVar("T")

MIN_ROUNDS = 6
"""Fewer give no interval: the median of five lies outside all of them once in sixteen times."""


def interleave(
    variants: Sequence[V],
    num_rounds: int,
    measure: Callable[[V], T],
    on_round: Callable[[int], None] = lambda done: None,
) -> list[list[T]]:
    """Measures every variant once a round; each variant's measurements, one a round.

    Args:
        variants: what to measure.
        num_rounds: passes over them; the first round's figures count like the others', so warm up before.
        measure: one measurement of a variant.
        on_round: told how many rounds are over.
    """
    measured: list[list[T]] = [[] for _ in variants]
    for done, index in enumerate(mirrored(len(variants), num_rounds), start=1):
        measured[index].append(measure(variants[index]))
        if done % len(variants) == 0:
            on_round(done // len(variants))
    return measured


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Median of a ÷ b over rounds, with an interval that holds whatever way rounds are spread.

    Its bounds are two of the ratios themselves, as many from either end as leave out the true median in at most 5% of
    cases (the sign test's interval; with nine rounds one of them may be an outlier). None for fewer than `MIN_ROUNDS`.
    """
    return _median([x / y for x, y in zip(a, b, strict=True)])


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Median of a - b over rounds, with an interval as `paired_ratio`'s."""
    return _median([x - y for x, y in zip(a, b, strict=True)])


def _median(values: Sequence[float]) -> Interval:
    if len(values) < MIN_ROUNDS:
        return Interval(value=median(values), bounds=None)
    ordered, left_out = sorted(values), _left_out(len(values))
    return Interval(value=median(ordered), bounds=(ordered[left_out], ordered[-1 - left_out]))


def _left_out(num: int) -> int:
    """Values left out at either end: the most whose chance that the median lies there is within what is allowed."""
    num_left_out, below = 0, 1  # below: of the 2^num ways to fall, those with at most so many values under the median
    while (below := below + comb(num, num_left_out + 1)) <= (1 - CONFIDENCE) / 2 * 2**num:
        num_left_out += 1
    return num_left_out


def ratio_as_dict(interval: Interval) -> dict[str, Any]:
    """For JSON; "low" and "high" hold the ratio with 95% confidence, None where too few rounds were run."""
    low, high = interval.bounds or (None, None)
    return {"median": _short(interval.value), "low": _short(low), "high": _short(high)}


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 5th and 95th percentile, in milliseconds."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return 1e3 * ordered[round(share * (len(ordered) - 1))]

    return {"median": round(1e3 * median(ordered), 4), "p5": round(at(0.05), 4), "p95": round(at(0.95), 4)}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
