"""How far a batch of answers is, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from outpace.wording import count_of

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """In a terminal one line is overwritten; elsewhere (a log, a pipe) a line comes every few seconds, and a last one.

    Args:
        num_answers: how many are awaited.
        out: where to.
        clock: seconds, never going back.
    """

    def __init__(self, num_answers: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_answers = num_answers
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._due = clock() + SECONDS_BETWEEN_LINES

    def show(self, num_finished: int, num_tokens: int) -> None:
        """Says it, if it is time to."""
        line = f"{num_finished}/{count_of(self._num_answers, 'answer')}, {count_of(num_tokens, 'token')}"
        last = num_finished == self._num_answers
        if self._live:
            print(f"\r{line}", end="\n" if last else "", file=self._out, flush=True)
        elif last or self._clock() >= self._due:
            print(line, file=self._out, flush=True)
            self._due = self._clock() + SECONDS_BETWEEN_LINES
