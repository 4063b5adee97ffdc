"""Which answers are left out of accept lengths: a drafter guesses a repeated block easily, so loops flatter it.

A loop anywhere counts, not only at the end, since every cycle is measured; `outpace.loops` says what a loop is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outpace.loops import holds_loop

MAX_PERIOD = 64
"""Longer blocks are repeated paragraphs, which are no easier to draft than other text."""


def loops(token_ids: Sequence[int]) -> bool:
    """Whether a block of 1 … 64 tokens loops anywhere in the answer."""
    return holds_loop(np.asarray(token_ids, dtype=np.int64), max_period=MAX_PERIOD)
