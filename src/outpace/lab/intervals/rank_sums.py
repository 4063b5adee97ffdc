"""Two sets of values that were measured apart: by how much one lies above the other, by Wilcoxon's rank sums.

The interval cuts the order of all quotients, one value of either set each, where the exact null distribution of the
rank sum statistic says. It holds whatever the distribution is, as long as it is the same for both but for a factor.
(Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 4.2 and 4.3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from outpace.lab.intervals.interval import CONFIDENCE

EXACT_UP_TO = 50
"""Values of either; beyond, the normal approximation is as good."""
LEAST = 4
"""Of each: three against three lie wholly apart once in ten times."""


def ratio_bounds(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """What holds the factor between two sets of positive values with 95% confidence; None of too few."""
    if min(len(above), len(below)) < LEAST:
        return None
    cut = _cut(len(above), len(below))
    quotients = np.sort(np.divide.outer(np.asarray(above, dtype=np.float64), np.asarray(below)).ravel())
    return float(quotients[cut - 1]), float(quotients[-cut])


@lru_cache(maxsize=256)
def _cut(num_above: int, num_below: int) -> int:
    """How many quotients lie outside on each side: the largest c with P(U < c) within what is allowed."""
    allowed = (1.0 - CONFIDENCE) / 2.0
    if max(num_above, num_below) > EXACT_UP_TO:
        mean, variance = num_above * num_below / 2.0, num_above * num_below * (num_above + num_below + 1) / 12.0
        return max(1, int(mean - NormalDist().inv_cdf(1.0 - allowed) * variance**0.5))
    return int(np.searchsorted(np.cumsum(_pairs_above(num_above, num_below)), allowed, side="right"))


def _pairs_above(num_above: int, num_below: int) -> NDArray[np.float64]:
    """P(U = u), u being the pairs whose first value is the larger: each next value has 0 … `num_below` below it.

    Gaussian binomials: the product of (1 - x^(m+i)) / (1 - x^i) over i = 1 … n.
    """
    counts: NDArray[np.float64] = np.zeros(num_above * num_below + 1)
    counts[0] = 1.0
    for i in range(1, num_above + 1):
        for u in range(len(counts) - 1, num_below + i - 1, -1):
            counts[u] -= counts[u - num_below - i]
        for u in range(i, len(counts)):
            counts[u] += counts[u - i]
    counts /= counts.sum()
    return counts
