"""How long the demonstration takes, from its own timings so far, and what it leaves out where that is too long.

An answer is expected to take what the last ones of its contender took: a machine that is busy for a while is slow for
all of them. What never answered is expected to take as long as the slowest that did.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import fmean

KEPT = 4
"""Answers of a contender that its next one is expected to be like."""
FEWEST_TOKENS = 8
"""Of an answer: shorter ones say nothing of decoding."""


class Pace:
    """Follows one demonstration, from now on.

    Args:
        limit_s: seconds for all of it.
        clock: seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit_s = limit_s
        self.clock = clock
        self._began = clock()
        self._last: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    @property
    def passed_s(self) -> float:
        return self.clock() - self._began

    def saw(self, who: str, seconds: float) -> None:
        """An answer of a contender took so long, its prompt included."""
        self._last[who].append(seconds)

    def shorten(self, share: float) -> None:
        """Answers have only so much of their length from now on."""
        for who, last in self._last.items():
            self._last[who] = deque((share * seconds for seconds in last), maxlen=KEPT)

    def expects(self, who: str) -> float:
        """Seconds of its next answer; 0 before there was any answer."""
        means = {name: fmean(last) for name, last in self._last.items()}
        return means.get(who, max(means.values(), default=0.0))

    def takes(self, whose: Collection[str], num: int) -> float:
        """Seconds for so many answers of each."""
        return num * sum(map(self.expects, whose))

    def fits(self, seconds: float) -> bool:
        """So much more is within the limit."""
        return self.passed_s + seconds <= self.limit_s

    def tokens_that_fit(self, num_tokens: int, seconds: float) -> int:
        """Shorter answers, so that what would take that long with `num_tokens` each is within the limit."""
        left = max(0.0, self.limit_s - self.passed_s)
        return num_tokens if seconds <= left else max(min(num_tokens, FEWEST_TOKENS), int(num_tokens * left / seconds))


@dataclass(kw_only=True)
class Plan:
    """What is to be measured, how long that takes, and what was left out of it."""

    pace: Pace
    pair: tuple[str, ...]
    """Names of plain decoding and speculation."""
    extras: Collection[str]
    """Of what else is timed."""
    num_prompts: int
    num_rounds: int
    warn: Callable[[str], None]
    """Told of what is left out."""
    left_out: list[str] = field(default_factory=list)

    def left_s(self, num_shown: int) -> float:
        """Seconds for everything after so many prompts of the first pass, within the limit."""
        rest = self.pace.takes(self.pair, self.num_prompts - num_shown) + self.pace.takes(self.extras, 1)
        rounds = self.num_rounds * self.pace.takes((*self.pair, *self.extras), self.num_prompts)
        return min(rest + rounds, max(0.0, self.pace.limit_s - self.pace.passed_s))

    def leave_out(self, what: str) -> None:
        """For want of time, and says so."""
        self.left_out.append(what)
        self.warn(f"this machine is slow now, and the time limit is {self.pace.limit_s:.0f} s: {what}")
