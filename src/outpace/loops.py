"""Answers that fall into a loop: a block of tokens repeated again and again, as small models decoding greedily end.

Training cuts the loop that an answer ends in; measuring leaves out answers that loop anywhere. Both mean by a loop that
a block stands at least three times in a row and that the repetitions beyond the first block cover at least 24 tokens.
How long a block may be is the caller's to say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_REPEATED = 24
"""Shorter repetitions are ordinary text: rulers, ellipses, table rows, refrains."""

Ints = NDArray[np.int64]


def holds_loop(tokens: Ints, *, max_period: int) -> bool:
    """Whether a block of at most `max_period` tokens loops anywhere."""
    return any(_longest_run(tokens, period) >= _needed(period) for period in _periods(tokens, max_period))


def final_period(tokens: Ints, *, max_period: int) -> int | None:
    """Length of the shortest block, of at most `max_period` tokens, that the tokens end by looping; None without."""
    return next((p for p in _periods(tokens, max_period) if _final_run(tokens, p) >= _needed(p)), None)


def trim_loop(tokens: Ints, *, max_period: int, keep: int = 2) -> Ints:
    """The tokens up to `keep` blocks of the loop that they end in; all of them without one."""
    period = final_period(tokens, max_period=max_period)
    if period is None:
        return tokens
    first = len(tokens) - _final_run(tokens, period) - period
    return tokens[: first + keep * period]


def _periods(tokens: Ints, max_period: int) -> range:
    return range(1, min(max_period, len(tokens) // 3) + 1)


def _needed(period: int) -> int:
    """Tokens that must equal the one a block before them."""
    return max(2 * period, MIN_REPEATED)


def _longest_run(tokens: Ints, period: int) -> int:
    """Most consecutive tokens that equal the one `period` places before them."""
    same = np.concatenate(([False], tokens[period:] == tokens[:-period], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1])
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _final_run(tokens: Ints, period: int) -> int:
    """How many of the last tokens equal the one `period` before them, without a break."""
    differs = tokens[:-period][::-1] != tokens[period:][::-1]
    return int(differs.argmax()) if differs.any() else len(differs)
