"""Ctrl-C as a request to stop at the next good place; a second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Takes SIGINT while its block runs, in the main thread.

    Args:
        tell: called at the first one, from the signal's handler.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self.asked = False
        """Whether there was one."""
        self._tell = tell

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._tell()
