"""The interval of a median that supposes nothing of how values are spread: two of the values themselves.

As many values lie outside on either side as leave out the true median in at most 5% of cases. Rounds on a busy machine
have outliers on one side only, so nothing that supposes values to lie evenly about their centre holds of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

from outpace.lab.intervals.interval import CONFIDENCE, Interval

MIN_ROUNDS = 6
"""Fewer give no interval: the median of five lies outside all of them once in sixteen times."""


def median_of(values: Sequence[float]) -> Interval:
    """The median of one value a round; with nine rounds one of them may be an outlier. None for few rounds."""
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
