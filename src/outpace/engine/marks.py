"""Times the phases of a cycle, where somebody asked for that.

On a GPU a mark is an event in the stream; in a graph it is part of the graph, and every replay records it anew. So one
cycle's times must be read before the next one is enqueued.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Marks:
    """The ends of one cycle's phases, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._ends: list[tuple[str, float | torch.cuda.Event]] = []

    def start(self) -> Marks:
        """Where the cycle begins; what it was told before is forgotten."""
        self._ends = []
        self("")
        return self

    def __call__(self, phase: str) -> None:
        """Where a phase ends."""
        if not self._on_gpu:
            self._ends.append((phase, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True, external=torch.cuda.is_current_stream_capturing())
        event.record()
        self._ends.append((phase, event))

    def seconds(self) -> dict[str, float]:
        """What each phase of the last cycle took."""
        return {phase: _between(before, end) for (_, before), (phase, end) in pairwise(self._ends)}


def _between(before: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(before, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(before.elapsed_time(end)) / 1e3
    assert isinstance(before, float) and isinstance(end, float)
    return end - before
