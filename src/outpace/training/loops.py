"""Answers that fall into a loop: where the loop is established, so that training can stop there.

A small model decoding greedily often ends by repeating a block for ever. A drafter learns that from a few tokens;
hundreds more of them would buy nothing and crowd out the rest.
"""

from __future__ import annotations

from outpace.training.conversations import Ints

MAX_PERIOD = 160
_MIN_REPEATED = 24
"""Shorter repetitions are ordinary text: rulers, ellipses, table rows."""


def loop_period(tokens: Ints) -> int | None:
    """Length of the block that the tokens end by repeating, at least three times in all; None without a loop."""
    for period in range(1, min(MAX_PERIOD, len(tokens) // 3) + 1):
        if _num_matching(tokens, period) >= max(2 * period, _MIN_REPEATED):
            return period
    return None


def trim_loop(tokens: Ints, *, keep: int = 2) -> Ints:
    """The tokens up to `keep` blocks of their final loop; all of them without a loop."""
    period = loop_period(tokens)
    if period is None:
        return tokens
    first = len(tokens) - _num_matching(tokens, period) - period
    return tokens[: first + keep * period]


def _num_matching(tokens: Ints, period: int) -> int:
    """How many of the last tokens equal the one `period` before them, without a break."""
    differs = tokens[:-period][::-1] != tokens[period:][::-1]
    return int(differs.argmax()) if differs.any() else len(differs)
