"""Comparing speeds that were measured in one run: interleaving order, and a ratio with its confidence interval.

Machines drift: clocks, neighbours, temperature. Contenders therefore run in mirrored order (A B C, then C B A), so
that a steady drift cancels, and the ratio is taken between totals over the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


def mirrored(num_contenders: int, num_rounds: int) -> Iterator[int]:
    """Indices of the contenders in the order to run them: 0 1 2 2 1 0 0 1 2 … for `num_rounds` passes."""
    forward = range(num_contenders)
    for turn in range(num_rounds):
        yield from forward if turn % 2 == 0 else reversed(forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Tokens and seconds of one contender on one prompt, once a round."""

    tokens: Sequence[int]
    seconds: Sequence[float]

    @property
    def tok_s(self) -> float:
        """Median over the rounds."""
        return median(t / s if s else 0.0 for t, s in zip(self.tokens, self.seconds, strict=True))

    @property
    def per_token_s(self) -> float:
        """Seconds a token, median over the rounds; 0 if it wrote none."""
        return 1.0 / self.tok_s if self.tok_s else 0.0


def total_tok_s(samples: Sequence[Sample]) -> float:
    """Tokens per second over all prompts, each weighing as many tokens as it had."""
    weights = [s.tokens[0] for s in samples]
    seconds = sum(w * s.per_token_s for w, s in zip(weights, samples, strict=True))
    return sum(weights) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and the range that holds it with 95% confidence."""

    value: float
    low: float
    high: float

    @property
    def conclusive(self) -> bool:
        """The range does not contain 1: one of the two is faster."""
        return self.low > 1.0 or self.high < 1.0


def speed_ratio(a: Sequence[Sample], b: Sequence[Sample]) -> Interval:
    """How many times faster `a` is than `b` on the same prompts, with a bootstrap interval over the prompts.

    With one prompt there is nothing to resample and the interval is the value alone.
    """
    draw = random.Random(0)  # the same samples give the same interval
    indices = range(len(a))
    ratios = sorted(_ratio(a, b, draw.choices(indices, k=len(a))) for _ in range(NUM_RESAMPLES))
    tail = int(NUM_RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(value=_ratio(a, b, indices), low=ratios[tail], high=ratios[-1 - tail])


def _ratio(a: Sequence[Sample], b: Sequence[Sample], indices: Sequence[int]) -> float:
    slower = total_tok_s([b[i] for i in indices])
    return total_tok_s([a[i] for i in indices]) / slower if slower else 0.0
