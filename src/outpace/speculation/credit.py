"""What speculation may lose against plain decoding, which earns it: a small part of its time.

Kept in seconds, since batches differ: in a hundred steps of one short row passes what a step of 64 long ones takes.
"""

from __future__ import annotations

BUDGET = 0.015
"""Part of the time that may be lost to speculation that does not pay."""
FIRST_CREDIT = 4.0
"""What may be lost before plain decoding has earned anything, in plain steps."""
MOST_CREDIT = 24.0
"""What may be saved up, in plain steps, and so about what a single window may lose beside its budget. With both, one of
2,000 plain steps loses less than 3%, or of 3,200 where catch-ups are dearest. Less would not pay for a probe behind
such a catch-up."""


class Credit:
    """Seconds that may be lost."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._first = FIRST_CREDIT

    def covers(self, seconds: float) -> bool:
        """Whether so much is there; of less than nothing, whether no more is owed."""
        return self._seconds >= seconds

    def earn(self, plain_seconds: float, step: float) -> None:
        """Plain decoding ran for so long, in steps that take `step` seconds each."""
        self.add(BUDGET * plain_seconds, step)

    def add(self, gain: float, step: float) -> None:
        """Adds the seconds that speculation gained, or takes those it lost, as far as such steps may save up or owe.

        Shorter steps take away what was saved up of longer ones, but not what is owed of them.
        """
        found = self._seconds + self._first * step + gain
        self._first, most = 0.0, MOST_CREDIT * step
        self._seconds = max(min(self._seconds, -most), min(found, most))
