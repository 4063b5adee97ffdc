"""Graphs: what runs over buffers that never move is recorded once and replayed, on all ranks or on none.

A rank that replays and one that runs the same thing would meet in the wrong collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from outpace.distributed.group import Group
from outpace.distributed.symmetric import agree
from outpace.engine.cut import CutCycle
from outpace.speculation.chosen import Chosen

Left = TypeVar("Left")
Run = Callable[[], Chosen]
MakeRoom = Callable[[], bool]
"""Lets all other graphs go, where memory is short; says whether there were any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What came of recording something."""

    replay: Run
    """Runs it."""
    capture_s: float
    num_bytes: int
    why_eager: str | None
    """Why this is no graph; None if it is one."""


def summary(recorded: Iterable[tuple[Recorded, dict[str, Any]]]) -> dict[str, Any]:
    """What there is, each with its shape, as plain data for JSON."""
    every = list(recorded)
    return {
        "captured": sum(graph.why_eager is None for graph, _ in every),
        "eager": [shape | {"why": graph.why_eager} for graph, shape in every if graph.why_eager is not None],
        "capture_s": round(sum(graph.capture_s for graph, _ in every), 3),
        "graph_bytes": sum(graph.num_bytes for graph, _ in every),
    }


class Recorder:
    """Records graphs, which share one pool of memory.

    Args:
        device: where they run; a CPU has none.
        group: the ranks that record the same.
    """

    def __init__(self, device: torch.device, group: Group) -> None:
        self._device, self._group = device, group
        self._pool: Any = None
        """The first graph makes it."""

    def record(self, run: Run, cut: CutCycle | None, make_room: MakeRoom) -> Recorded:
        """`run` as a graph, or the parts of `cut`; where that cannot be, what is given runs as it is."""
        if self._device.type != "cuda":
            return Recorded(replay=run, capture_s=0.0, num_bytes=0, why_eager="no CUDA device")
        began = time.perf_counter()
        replay, num_bytes, why_eager = self._captured(run, cut, make_room)
        seconds = time.perf_counter() - began
        return Recorded(replay=replay, capture_s=seconds, num_bytes=num_bytes, why_eager=why_eager)

    def _captured(self, run: Run, cut: CutCycle | None, make_room: MakeRoom) -> tuple[Run, int, str | None]:
        """What replays it, the bytes that it takes, and why it is no graph; a graph on all ranks or on none."""
        group, why_not = self._group, None
        if group.size > 1:  # what this raises is the forward's: where one rank fails alone, others wait for its sums
            self._warm_up(run if cut is None else cut.run)
        begun, ended = group.calls.begun, group.calls.ended
        try:
            replay, num_bytes = self._capture(run, cut, make_room)
        except RuntimeError as error:
            why_not = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if group.size > 1:  # recording waits for nobody, so all ranks come here
            group.calls.begun, group.calls.ended = begun, ended  # what was recorded has not begun
            why_not = agree(group, self._device, why_not)
        return (replay, num_bytes, None) if why_not is None else (run, 0, why_not)

    def _capture(self, run: Run, cut: CutCycle | None, make_room: MakeRoom) -> tuple[Run, int]:
        """What replays it, and the bytes it takes. Where memory is short, all other graphs go first."""
        alone = self._group.size == 1
        try:
            if alone:
                self._warm_up(run if cut is None else cut.run)
            before = torch.cuda.memory_reserved(self._device)
            if cut is None:
                run = self._record(run)
            else:
                cut.capture(self._record)
            return run, torch.cuda.memory_reserved(self._device) - before
        except RuntimeError as error:
            _free_generator(self._device)
            self._pool = None  # torch drops a pool whose only graph failed, and knows it no more
            if not isinstance(error, torch.OutOfMemoryError) or not alone or not make_room():
                raise
        return self._capture(run, cut, make_room)

    def _warm_up(self, run: Callable[[], object]) -> None:
        """Runs once over inert rows, so that kernels are compiled and workspaces allocated."""
        torch.cuda.synchronize(self._device)
        run()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # as capturing does; what is reserved now does not count as the graph's

    def _record(self, run: Callable[[], Left]) -> Callable[[], Left]:
        graph, self._pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # NCCL's threads are at work
            left = run()

        def replay() -> Left:
            graph.replay()
            return left

        return replay


def _free_generator(device: torch.device) -> None:
    """After a capture that failed, torch's generator still waits for its end and refuses every draw: gives it a state
    of its own again."""
    fresh = torch.Generator(device)
    fresh.seed()
    torch.cuda.default_generators[device.index or 0].graphsafe_set_state(fresh.graphsafe_get_state())
