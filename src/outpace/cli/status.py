"""One line on stderr that says what is going on, and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

EVERY_S = 15.0
"""Of a stage that takes longer, where nothing can be overwritten."""


class Status:
    """In a terminal the line is overwritten; elsewhere each stage (the text before a colon) is printed once, and of a
    long one now and then the whole text.

    Args:
        out: where to.
        clock: seconds.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._live = out.isatty()
        self._clock = clock
        self._stage = ""
        self._told_s = clock()

    def show(self, text: str) -> None:
        """Replaces the line; an empty text clears it."""
        stage = text.partition(":")[0]
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
        elif stage and stage != self._stage:
            self._print(stage)
        elif stage and self._clock() - self._told_s >= EVERY_S:
            self._print(text)
        self._stage = stage
        self._out.flush()

    def _print(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._told_s = self._clock()

    def clear(self) -> None:
        """Leaves an empty line behind."""
        self.show("")
