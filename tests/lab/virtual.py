"""An event loop whose clock jumps to whatever is due next: hours of waiting take no time, and times are exact.

Nothing may be on its way then that the loop cannot see. What runs in it alone, or in transports without a network, is
always seen; a byte between two sockets of one machine may need a moment of the kernel's, and `grace` waits for it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self, grace: float) -> None:
        super().__init__()
        self.now, self._grace = 0.0, grace

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select()
        ready = super().select(min(timeout, self._grace))
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, grace: float = 0.0) -> None:
        self._jumping = _Jumping(grace)
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, T], grace: float = 0.0) -> T:
    """As asyncio.run, on a virtual clock, which stands still for `grace` real seconds before it jumps."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(grace)) as runner:
        return runner.run(work)
