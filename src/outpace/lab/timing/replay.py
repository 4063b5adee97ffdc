"""Times one thing that the device does, as a graph or launched anew, with something untimed before each time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

HEAD_START = 2_000_000
"""Cycles that a GPU is kept busy while a replay is being enqueued, so that its host does not count: a millisecond."""


class Timed:
    """Something to be timed, warmed up.

    Args:
        run: the work; in a graph it must not read anything back.
        device: where it runs.
        graph: capture it, and time replays.
        between: done before each time, not timed.
    """

    def __init__(
        self, run: Callable[[], object], device: torch.device, *, graph: bool, between: Callable[[], None]
    ) -> None:
        self._run, self._device, self._between, self._graph = run, device, between, graph
        self._kept: object = None
        with torch.inference_mode():
            for _ in range(2):
                run()
            if graph:
                torch.cuda.synchronize(device)
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    self._kept = run()
                self._run = captured.replay
                captured.replay()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def once(self) -> float:
        """Seconds of one time; on a GPU by its own clock."""
        with torch.inference_mode():
            self._between()
            if self._device.type != "cuda":
                began = time.perf_counter()
                self._run()
                return time.perf_counter() - began
            if self._graph:
                torch.cuda._sleep(HEAD_START)
            else:
                torch.cuda.synchronize(self._device)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self._run()
            end.record()
            torch.cuda.synchronize(self._device)
            return float(begin.elapsed_time(end)) / 1e3
