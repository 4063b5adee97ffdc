"""Variants measured in rounds: interleaved, compared within a round, and shown with their spread.

Every round runs every variant once, in mirrored order, so what slows the machine for a while slows all of them; a ratio
is taken within each round, and its interval says how far rounds disagree. It is the sign test's: what is measured is
the same each time, and what disturbs a round makes it longer and never shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, TypeVar

from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.sign_test import median_of
from outpace.lab.timing.samples import mirrored
from outpace.lab.written import significant

V = TypeVar("V")
T = TypeVar("T")


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
    """Median of a ÷ b over rounds, with an interval that holds whatever way rounds are spread."""
    return median_of([x / y for x, y in zip(a, b, strict=True)])


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Median of a - b over rounds, with an interval as `paired_ratio`'s."""
    return median_of([x - y for x, y in zip(a, b, strict=True)])


def ratio_as_dict(interval: Interval) -> dict[str, Any]:
    """For JSON; "low" and "high" hold the ratio with 95% confidence, None where too few rounds were run."""
    low, high = interval.bounds or (None, None)
    shown = {"median": interval.value, "low": low, "high": high}
    return {name: None if value is None else significant(value) for name, value in shown.items()}


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 5th and 95th percentile, in milliseconds."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return 1e3 * ordered[round(share * (len(ordered) - 1))]

    return {"median": significant(1e3 * median(ordered)), "p5": significant(at(0.05)), "p95": significant(at(0.95))}
