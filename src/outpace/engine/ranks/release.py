"""What is done once a group of ranks has ended, so that nothing in this process waits for one that is gone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from threading import Lock, Thread

import torch

from outpace.distributed import rendezvous

SECONDS_TO_GIVE_UP = 20.0
"""How long a forward may stay stuck on the device after a rank died, before this process ends itself."""
STUCK = 70
"""Exit status then: sysexits' EX_SOFTWARE."""
_LOOK_S = 0.1


class Release:
    """Ends waits for a rank that died: what was given here, the library's collectives, and at last this process."""

    def __init__(self) -> None:
        self.last: torch.cuda.Event | None = None
        """The end of the forward that was enqueued last."""
        self._calls: list[Callable[[], None]] = []
        self._begun = False
        self._lock = Lock()

    def add(self, call: Callable[[], None]) -> None:
        """Calls this once: from a thread of its own when the group ends, or now if it has."""
        with self._lock:
            if not self._begun:
                self._calls.append(call)
                return
        call()

    def begin(self, why: Exception) -> None:
        """The group has ended; `why` is told if this process has to end, too."""
        Thread(target=self._run, args=(why,), name="sets free", daemon=True).start()

    def _run(self, why: Exception) -> None:
        with self._lock:
            self._begun = True
        for call in self._calls:
            call()
        rendezvous.abort()
        deadline = time.monotonic() + SECONDS_TO_GIVE_UP
        while self.last is not None and not self.last.query():
            if time.monotonic() > deadline:
                print(f"outpace: {why}; a forward is stuck on the GPU, so this process ends", file=sys.stderr)
                os._exit(STUCK)
            time.sleep(_LOOK_S)
