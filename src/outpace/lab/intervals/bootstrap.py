"""The bootstrap: how far a figure of values that differ among themselves would move with other values of their kind.

Requests of a workload, prompts of a set: each is one draw, and any figure of them (a median, a quotient of sums) is
taken again of values drawn from those that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outpace.lab.intervals.interval import CONFIDENCE

NUM_RESAMPLES = 2000
MIN_VALUES = 4
"""Fewer give no interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one figure over requests: the median with its 95% interval, and how far single values lie apart."""

    median: float
    low: float | None
    high: float | None
    """None of fewer than four values."""
    p5: float
    p95: float
    p99: float
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A quotient of sums over requests, with its 95% interval."""

    value: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread | None:
    """Of single values; None of none. The interval is the percentile bootstrap of the median."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    low, high = tails(np.median(array[_draws(len(array))], axis=1)) if len(array) >= MIN_VALUES else (None, None)
    p5, median, p95, p99 = (float(q) for q in np.quantile(array, (0.05, 0.5, 0.95, 0.99)))
    return Spread(median=median, low=low, high=high, p5=p5, p95=p95, p99=p99, num=len(array))


def weighted_spread(values: Sequence[tuple[float, float]]) -> Spread | None:
    """Of (value, weight): quantiles of the values, each as often as it weighs. No interval."""
    pairs = sorted((value, weight) for value, weight in values if weight > 0)
    if not pairs:
        return None
    ordered = np.asarray([value for value, _ in pairs])
    reached = np.cumsum([weight for _, weight in pairs])
    p5, median, p95, p99 = (
        float(ordered[min(len(ordered) - 1, int(np.searchsorted(reached, share * reached[-1])))])
        for share in (0.05, 0.5, 0.95, 0.99)
    )
    return Spread(median=median, low=None, high=None, p5=p5, p95=p95, p99=p99, num=round(float(reached[-1])))


def rate(parts: Sequence[tuple[float, float]], factor: float = 1.0) -> Rate | None:
    """Sum of the first ÷ sum of the second, times a factor; None where the second is 0. Resampled by request."""
    array = np.asarray(parts, dtype=np.float64).reshape(-1, 2)
    if not array[:, 1].sum() > 0:
        return None
    value = factor * float(array[:, 0].sum() / array[:, 1].sum())
    if len(array) < MIN_VALUES:
        return Rate(value=value, low=None, high=None)
    sums = array[_draws(len(array))].sum(axis=1)
    kept = sums[sums[:, 1] > 0]
    low, high = tails(factor * kept[:, 0] / kept[:, 1])
    return Rate(value=value, low=low, high=high)


def _draws(num: int) -> np.ndarray:
    """Which values each resample takes; the same every time."""
    return np.random.default_rng(0).integers(0, num, size=(NUM_RESAMPLES, num))


def tails(found: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """What 95% of the figures of all resamples lie between."""
    low, high = np.quantile(found, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)
