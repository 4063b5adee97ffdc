"""How far a run of requests is, and how long the rest takes at the pace so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from outpace.lab.written import about


class Progress:
    """Counts requests and tells.

    Args:
        total: requests that there are.
        tell: told a line after each; what stands before its colon is the stage.
        clock: seconds.
    """

    def __init__(self, total: int, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._tell, self._clock = total, tell, clock
        self._began = clock()
        self._done = 0
        self._where = ""

    def at(self, where: str) -> None:
        """The part of the run that is under way, such as a block."""
        self._where = f"{where}, "
        self._show()

    def done(self) -> None:
        """One more."""
        self._done += 1
        self._show()

    def _show(self) -> None:
        left = ""
        if self._done:
            left_s = (self._clock() - self._began) / self._done * (self._total - self._done)
            left = f", {about(left_s)} left"
        self._tell(f"measuring: {self._where}{self._done} of {self._total} requests{left}")
