"""Ctrl-C as a request to stop at the next good place; a second one stops at once. SIGTERM and SIGHUP are like it.

Machines and schedulers that are about to stop send SIGTERM, a terminal that is closed SIGHUP. That one comes from the
kernel and from the shell, so several are one request; where it was ignored from the start, as under nohup, it still is.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Takes these signals while its block runs, in the main thread.

    Args:
        tell: called at the first one, from the signal's handler.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self.asked = False
        """Whether there was one."""
        self._tell = tell

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM, *_hangup())
        self._before = {number: signal.signal(number, self._take) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            self._tell()
        elif number != signal.SIGHUP:
            raise KeyboardInterrupt


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """The others raise KeyboardInterrupt in the block too, which is the main thread's."""
    before = {number: signal.signal(number, _raise) for number in (signal.SIGTERM, *_hangup())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _hangup() -> tuple[signal.Signals, ...]:
    """SIGHUP, where it is not ignored."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
