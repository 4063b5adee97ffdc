"""Where two answers in 16 bits part, and by how much the likelier token was ahead there."""

from __future__ import annotations

from collections.abc import Sequence

from engine.reference import Served
from outpace.types import TokenLogprobs


def part_at_ties(ours: Sequence[Served], theirs: Sequence[Served]) -> tuple[list[float], float]:
    """For each two answers that part, our token's log-probability less that of theirs at that place; and the largest
    difference of a log-probability before."""
    gaps, rounding = [], 0.0
    for mine, other in zip(ours, theirs, strict=True):
        pairs = enumerate(zip(mine.token_ids, other.token_ids, strict=False))
        place = next((index for index, (x, y) in pairs if x != y), None)
        rounding = max(rounding, largest_difference(mine.logprobs[:place], other.logprobs[:place]))
        if place is not None:
            chances = dict(mine.logprobs[place].top)
            gaps.append(chances[mine.token_ids[place]] - chances[other.token_ids[place]])
    return gaps, rounding


def largest_difference(ours: Sequence[TokenLogprobs], theirs: Sequence[TokenLogprobs]) -> float:
    """Of the log-probabilities of tokens that both name."""
    found = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        known = dict(other.top)
        found = max([found, *(abs(value - known[token]) for token, value in mine.top if token in known)])
    return found
