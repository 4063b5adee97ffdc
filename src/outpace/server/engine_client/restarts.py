"""How soon, and how often, a process that dies is started again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

WINDOW = 600.0
FIRST_DELAY, LONGEST_DELAY = 0.2, 30.0


class Restarts:
    """Delays that double with each death within ten minutes, up to a limit of deaths.

    Deaths before the process was ready are counted however long it took to load: one that never gets there is given up.

    Args:
        most: deaths within ten minutes, or without being ready in between, after which it is left dead.
        clock: seconds, never going back.
    """

    def __init__(self, most: int, clock: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._clock = clock
        self._deaths: deque[float] = deque()

    def after_death(self, *, served: bool) -> float | None:
        """Seconds to wait before the next start; None if there should be none. It `served` if it had been ready."""
        now = self._clock()
        self._deaths.append(now)
        while served and self._deaths[0] <= now - WINDOW:
            self._deaths.popleft()
        if len(self._deaths) > self._most:
            return None
        return float(min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (len(self._deaths) - 1)))
