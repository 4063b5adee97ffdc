"""A clock that goes on by the same at every look: what is timed by it takes as long as it looks at the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest


@dataclass
class Ticking:
    """Stands for this process's clocks."""

    tick: float = 1e-3
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """The clock that whatever measures sees from now on."""
    clock = Ticking()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "process_time", clock)
    return clock
