"""Where paired log ratios lie: the Hodges-Lehmann estimate and the interval of Wilcoxon's signed ranks.

The estimate is the median of all pairwise means (Walsh averages); the interval cuts their order where the exact null
distribution of the signed rank statistic says. It holds whatever the distribution is, as long as it is symmetric, which
differences of two measurements under the same noise are; outliers move it little, and normal data cost it 5% of its
sharpness. (Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 3.2 and 3.3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

EXACT_UP_TO = 200
"""Beyond, the normal approximation is as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Of log ratios."""

    center: float
    low: float
    high: float
    """-inf … inf where there are too few values for the confidence."""
    num: int


def locate(values: Sequence[float], confidence: float) -> Location:
    """The interval has at least that confidence. Needs a value."""
    array = np.asarray(values, dtype=np.float64)
    rows, columns = np.triu_indices(len(array))
    walsh = np.sort((array[rows] + array[columns]) / 2.0)
    cut = _cut(len(array), 1.0 - confidence)
    low, high = (float(walsh[cut - 1]), float(walsh[-cut])) if cut > 0 else (-np.inf, np.inf)
    return Location(center=float(np.median(walsh)), low=low, high=high, num=len(array))


def fewest(confidence: float) -> int:
    """Values that it takes for a finite interval."""
    return next(num for num in range(1, 64) if _cut(num, 1.0 - confidence) > 0)


@lru_cache(maxsize=1024)
def _cut(num: int, alpha: float) -> int:
    """How many Walsh averages lie outside on each side: the largest c with P(T < c) ≤ alpha / 2."""
    if num > EXACT_UP_TO:
        mean, variance = num * (num + 1) / 4.0, num * (num + 1) * (2 * num + 1) / 24.0
        return int(mean - NormalDist().inv_cdf(1.0 - alpha / 2.0) * variance**0.5)
    below = np.cumsum(_rank_sums(num))
    return int(np.searchsorted(below, alpha / 2.0, side="right"))


def _rank_sums(num: int) -> NDArray[np.float64]:
    """P(T = t) of the signed rank statistic: each rank 1 … num counts with probability one half."""
    chances = np.zeros(num * (num + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, num + 1):
        chances[rank:] = (chances[rank:] + chances[:-rank]) / 2.0
        chances[:rank] /= 2.0
    return chances
