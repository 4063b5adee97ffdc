"""Answers that fall into a loop. A drafter guesses a repeated block easily, so such answers flatter accept length.

An answer loops when, anywhere in it, a block of 1 … 64 tokens stands at least three times in a row and the repetitions
beyond the first block cover at least 24 tokens. Shorter repetitions are ordinary text: rulers, table rows, refrains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_PERIOD = 64
MIN_REPEATED = 24


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the answer holds a loop in the sense above."""
    tokens = np.asarray(token_ids)
    return any(_longest_run(tokens, period) >= max(2 * period, MIN_REPEATED) for period in range(1, MAX_PERIOD + 1))


def _longest_run(tokens: np.ndarray, period: int) -> int:
    """Most consecutive tokens that equal the one `period` places before them."""
    if len(tokens) <= period:
        return 0
    same = np.concatenate(([False], tokens[period:] == tokens[:-period], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1])
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
