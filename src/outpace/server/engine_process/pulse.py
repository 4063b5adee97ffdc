"""The engine process's sign of life: a beat whenever its main thread is at another place than when looked at last.

A step may rightly take long: a prefill on a CPU, a graph that is captured, a kernel that is compiled. Meanwhile Python
goes on from layer to layer. A thread that hangs stands in one call: a device that never answers, a lock, a collective
whose other side is gone. So what is looked at is where the thread stands, and not how long a step takes; only one that
goes round in circles within a single step has a limit, far above what a step can take. To stand where others are
watched, and given up if they hang, is no hanging.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import monotonic

PERIOD = 0.25
"""Seconds between two looks."""
STALLED_LOOKS = 8
LONGEST_STEP = 1800.0

Place = tuple[tuple[int, int], ...]


class Pulse:
    """Looks at a thread until `end`.

    Args:
        thread_id: the thread's `ident`.
        beat: called from a thread of this class's own whenever that one has moved.
        stalled: called from there when it has not for `STALLED_LOOKS`, and again after as many.
        longest_step: seconds after which a step is no sign of life any more.
        watching: functions that wait for others as long as those get on: a thread that is within one lives.
    """

    def __init__(
        self,
        thread_id: int,
        beat: Callable[[], None],
        *,
        stalled: Callable[[], None] = lambda: None,
        longest_step: float = LONGEST_STEP,
        watching: Sequence[Callable[..., object]] = (),
    ) -> None:
        self._thread_id, self._beat, self._stalled, self._longest_step = thread_id, beat, stalled, longest_step
        self._watching = {id(function.__code__) for function in watching}
        self._step_began = monotonic()
        self._ended = Event()
        Thread(target=self._look, name="pulse", daemon=True).start()

    def stepped(self) -> None:
        """Another step begins."""
        self._step_began = monotonic()

    def end(self) -> None:
        """Beats no more."""
        self._ended.set()

    def _look(self) -> None:
        before: Place = ()
        num_same = 0
        while not self._ended.wait(PERIOD):
            now = _place_of(self._thread_id)
            stands = now == before and self._watching.isdisjoint(code for code, _ in now)
            num_same = num_same + 1 if stands else 0
            if not num_same and monotonic() - self._step_began < self._longest_step:
                self._beat()
            elif num_same and num_same % STALLED_LOOKS == 0:
                self._stalled()
            before = now


def _place_of(thread_id: int) -> Place:
    """Where a thread is: every function that it is in, and how far it came there."""
    frame, places = sys._current_frames().get(thread_id), []
    while frame is not None:
        places.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(places)
