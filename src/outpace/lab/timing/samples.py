"""Comparing speeds that were measured in one run: interleaving order, and a ratio with its confidence interval.

Machines drift: clocks, neighbours, temperature. Contenders therefore run in mirrored order (A B C, then C B A), so
that a steady drift cancels, and the ratio is taken between totals over the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from outpace.lab.intervals.bootstrap import MIN_VALUES, NUM_RESAMPLES, tails
from outpace.lab.intervals.interval import Interval


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

    def rounds(self, indices: Sequence[int]) -> Sample:
        """These rounds alone, repeated as often as they are named."""
        return Sample(tokens=[self.tokens[i] for i in indices], seconds=[self.seconds[i] for i in indices])


def total_tok_s(samples: Sequence[Sample]) -> float:
    """Tokens per second over all prompts, each weighing as many tokens as it had."""
    weights = [s.tokens[0] for s in samples]
    seconds = sum(w * s.per_token_s for w, s in zip(weights, samples, strict=True))
    return sum(weights) / seconds if seconds else 0.0


def speed_ratio(a: Sequence[Sample], b: Sequence[Sample]) -> Interval:
    """How many times faster `a` is than `b` on the same prompts, measured in the same rounds.

    The interval is a bootstrap over prompts and, within each, over its rounds, so that it holds both how prompts differ
    and how noisy the machine was. A round is drawn for both contenders together: they ran in it side by side.
    """
    value = _ratio(list(zip(a, b, strict=True)))
    if len(a) < MIN_VALUES:
        return Interval(value=value, bounds=None)
    draw = random.Random(0)  # the same samples give the same interval
    return Interval(value=value, bounds=tails([_ratio(_resampled(a, b, draw)) for _ in range(NUM_RESAMPLES)]))


def _resampled(a: Sequence[Sample], b: Sequence[Sample], draw: random.Random) -> list[tuple[Sample, Sample]]:
    pairs = []
    for prompt in draw.choices(range(len(a)), k=len(a)):
        num_rounds = len(a[prompt].seconds)
        rounds = draw.choices(range(num_rounds), k=num_rounds)
        pairs.append((a[prompt].rounds(rounds), b[prompt].rounds(rounds)))
    return pairs


def _ratio(pairs: Sequence[tuple[Sample, Sample]]) -> float:
    slower = total_tok_s([b for _, b in pairs])
    return total_tok_s([a for a, _ in pairs]) / slower if slower else 0.0
