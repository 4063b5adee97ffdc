"""One line on stderr that says what is going on, and leaves nothing behind."""

from __future__ import annotations

from typing import TextIO


class Status:
    """In a terminal the line is overwritten; elsewhere each stage (the text before a colon) is printed once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._stage = ""

    def show(self, text: str) -> None:
        """Replaces the line; an empty text clears it."""
        stage = text.partition(":")[0]
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
        elif stage and stage != self._stage:
            self._out.write(f"{stage}\n")
        self._stage = stage
        self._out.flush()

    def clear(self) -> None:
        """Leaves an empty line behind."""
        self.show("")
