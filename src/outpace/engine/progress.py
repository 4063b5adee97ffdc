"""How far a batch of answers is, on stderr."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TextIO

from outpace.wording import count_of

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """In a terminal one line is overwritten; elsewhere (a log, a pipe) a line comes every few seconds, and a last one.
    Where nobody reads any more, a terminal that was closed or a broken pipe, the answers go on without.

    Args:
        num_answers: how many are awaited.
        out: where to.
        clock: seconds, never going back.
    """

    def __init__(self, num_answers: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_answers = num_answers
        self._out: TextIO | None = out
        self._clock = clock
        self._live = out.isatty()
        self._due = clock() + SECONDS_BETWEEN_LINES

    def show(self, num_finished: int, num_tokens: int) -> None:
        """Says it, if it is time to."""
        line = f"{num_finished}/{count_of(self._num_answers, 'answer')}, {count_of(num_tokens, 'token')}"
        last = num_finished == self._num_answers
        if self._live:
            self._print(f"\r{line}", end="\n" if last else "")
        elif last or self._clock() >= self._due:
            self._print(line, end="\n")
            self._due = self._clock() + SECONDS_BETWEEN_LINES

    def _print(self, line: str, end: str) -> None:
        if self._out is None:
            return
        try:
            print(line, end=end, file=self._out, flush=True)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self._out = None
