"""Two texts growing side by side in a terminal, or one above the other where there is no room or no terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

MIN_COLUMNS, MIN_LINES = 80, 20
_GAP = " │ "


class Columns:
    """Shows two named texts while they grow.

    Args:
        out: where to; side by side only if it is a terminal of at least 80 by 20.
        names: headings, the left one first. The left text is finished before the right one begins.
    """

    def __init__(self, out: TextIO, names: tuple[str, str]) -> None:
        size = shutil.get_terminal_size()
        self._out = out
        self._names = names
        self._wide = out.isatty() and size.columns >= MIN_COLUMNS and size.lines >= MIN_LINES
        self._width = (size.columns - len(_GAP) - 1) // 2
        self._max_lines = size.lines - 4
        self._texts = dict.fromkeys(names, "")
        self._num_drawn = 0

    def begin(self) -> None:
        """Starts an empty pair of texts."""
        self._texts = dict.fromkeys(self._names, "")
        self._num_drawn = 0

    def add(self, name: str, piece: str) -> None:
        """Appends to one of the texts."""
        first = not self._texts[name]
        self._texts[name] += piece
        if self._wide:
            self._draw()
            return
        if first:
            self._out.write(f"{name}:\n")
        self._out.write(piece)
        self._out.flush()

    def close(self, name: str, footer: str) -> None:
        """Ends one of the texts with a line of its own."""
        if self._wide:
            self._texts[name] = f"{self._texts[name].rstrip()}\n\n{footer}"
            self._draw()
            return
        self._out.write(f"\n  {footer}\n\n")
        self._out.flush()

    def _draw(self) -> None:
        """Draws both texts over what was drawn before; what does not fit on the screen is cut at the top."""
        left, right = (wrap(self._texts[name], self._width) for name in self._names)
        height = max(len(left), len(right))
        left += [""] * (height - len(left))
        right += [""] * (height - len(right))
        rows = [tuple(name.ljust(self._width) for name in self._names)]
        rows += [(a.ljust(self._width), b) for a, b in zip(left, right, strict=True)]
        if self._num_drawn:
            self._out.write(f"\x1b[{self._num_drawn}A")
        shown = [rows[0], *rows[1:][-self._max_lines :]]
        self._out.writelines(f"\x1b[K{a}{_GAP}{b}\n" for a, b in shown)
        self._out.flush()
        self._num_drawn = len(shown)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; line breaks and indentation of the text are kept."""
    lines: list[str] = []
    for line in text.expandtabs(4).splitlines():
        lines += textwrap.wrap(line, width, break_long_words=True) or [""]
    return lines
