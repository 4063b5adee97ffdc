"""Frames: a cycle of one shape over buffers that never move, so that a GPU can replay it as one graph.

A shape is (rows, k, what choosing tokens takes). Its inputs (`frame_inputs`) are row numbers and the pages that were
added since; everything else a cycle reads lies in the state. On a CPU, or where a graph cannot be captured, a replay
calls the cycle itself.

Ranks agree on what is a graph: a rank that replays and one that runs the cycle would meet in the wrong collective.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from outpace.distributed.symmetric import agree
from outpace.engine.cut import CutCycle
from outpace.engine.frame_inputs import FrameInputs
from outpace.engine.marks import Marks
from outpace.speculation.chosen import Chosen
from outpace.speculation.cycle import Cycle, no_mark
from outpace.speculation.pair import Pair
from outpace.speculation.state import State
from outpace.types import Needs

logger = logging.getLogger(__name__)
Left = TypeVar("Left")
MOST_FRAMES = 512
"""Kept; beyond, the one that was used the longest time ago goes. A graph takes a few megabytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a frame is made for."""

    num_rows: int
    k: int
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Buffers of one shape, and what runs over them."""

    shape: Shape
    inputs: FrameInputs
    replay: Callable[[], Chosen]
    """Runs the cycle."""
    cut: CutCycle | None
    """Runs it in its stead where some row is under a grammar."""
    capture_s: float
    capture_bytes: int
    why_eager: str | None
    """Why this is no graph; None if it is one."""
    marks: Marks | None
    """When the phases of the last replay ended, where they are timed."""


class Frames:
    """Makes frames when they are first needed.

    Args:
        pair: the models.
        state: its tensors must stay where they are.
        page_size: tokens in a page.
        timed: times the phases of every cycle.
        most: frames that are kept.
    """

    def __init__(
        self, pair: Pair, state: State, page_size: int, *, timed: bool = False, most: int = MOST_FRAMES
    ) -> None:
        self._pair, self._state, self._page_size, self._timed = pair, state, page_size, timed
        self._frames: OrderedDict[Shape, Frame] = OrderedDict()
        """The one that was used last at the end."""
        self._most = most
        self.num_dropped = 0
        """Frames that had to go for others."""
        self._pool: Any = torch.cuda.graph_pool_handle() if state.device.type == "cuda" else None
        self.num_replays = 0
        self.num_eager = 0
        """Of them, those whose frame is no graph."""

    def of(self, shape: Shape) -> Frame:
        """The frame of a shape, captured now if it is not there."""
        if shape not in self._frames:
            if len(self._frames) >= self._most:
                self._drop(1)
            self._frames[shape] = self._make(shape)
        self._frames.move_to_end(shape)
        return self._frames[shape]

    def _drop(self, num: int) -> None:
        """Frees those that were used the longest time ago."""
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)  # one of them may be running
        for _ in range(num):
            self._frames.popitem(last=False)
        self.num_dropped += num

    @torch.inference_mode()
    def rehearse(self, shape: Shape) -> None:
        """Runs the cycle of a shape over inert rows, without a graph and without keeping anything."""
        self._cycle(shape, self._inputs(shape), None).run()

    def _inputs(self, shape: Shape) -> FrameInputs:
        """Over inert rows; they take the pages that one cycle may need for each row."""
        num_changes = shape.num_rows * (1 + -(-(shape.k + 1) // self._page_size))
        return FrameInputs(shape.num_rows, num_changes, self._state.inert, self._state.device)

    def _make(self, shape: Shape) -> Frame:
        inputs, device = self._inputs(shape), self._state.device
        marks = Marks(device) if self._timed else None

        def begin() -> Cycle:
            return self._cycle(shape, inputs, marks)

        def run() -> Chosen:
            return begin().run()

        replay, num_bytes, cut = run, 0, self._cut(shape, begin)
        began, why_eager = time.perf_counter(), None
        if device.type != "cuda":
            why_eager = "no CUDA device"
        else:
            replay, num_bytes, why_eager = self._captured(run, cut)
            if why_eager is not None:
                cut = self._cut(shape, begin)
                logger.warning("cycles of %s run without a graph, and slower: %s", shape, why_eager)
        return Frame(
            shape=shape,
            inputs=inputs,
            replay=replay,
            cut=cut,
            capture_s=time.perf_counter() - began,
            capture_bytes=num_bytes,
            why_eager=why_eager,
            marks=marks,
        )

    def _cut(self, shape: Shape, begin: Callable[[], Cycle]) -> CutCycle | None:
        """Its parts, not captured; None where no row is under a grammar."""
        if not shape.needs.masked:
            return None
        target, device = self._pair.target, self._state.device
        return CutCycle(begin, shape.num_rows, shape.k, target.config.vocab_size, device, target.group)

    def _captured(
        self, run: Callable[[], Chosen], cut: CutCycle | None
    ) -> tuple[Callable[[], Chosen], int, str | None]:
        """What replays a cycle, the bytes that it takes, and why it is no graph; a graph on all ranks or on none."""
        group, why_not = self._pair.target.group, None
        if group.size > 1:  # what this raises is the forward's: where one rank fails alone, others wait for its sums
            self._warm_up(run if cut is None else cut.run)
        begun, ended = group.calls.begun, group.calls.ended
        try:
            replay, num_bytes = self._capture(run, cut)
        except RuntimeError as error:
            why_not = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if group.size > 1:  # recording waits for nobody, so all ranks come here
            group.calls.begun, group.calls.ended = begun, ended  # what was recorded has not begun
            why_not = agree(group, self._state.device, why_not)
        return (replay, num_bytes, None) if why_not is None else (run, 0, why_not)

    def _capture(self, run: Callable[[], Chosen], cut: CutCycle | None) -> tuple[Callable[[], Chosen], int]:
        """What replays it, and the bytes it takes. Where memory is short, all other frames go first."""
        device, alone = self._state.device, self._pair.target.group.size == 1
        try:
            if alone:
                self._warm_up(run if cut is None else cut.run)
            before = torch.cuda.memory_reserved(device)
            if cut is None:
                run = self._record(run)
            else:
                cut.capture(self._record)
            return run, torch.cuda.memory_reserved(device) - before
        except RuntimeError as error:
            _free_generator(device)
            if not isinstance(error, torch.OutOfMemoryError) or not self._frames or not alone:
                raise
        self._drop(len(self._frames))
        return self._capture(run, cut)

    def _warm_up(self, run: Callable[[], object]) -> None:
        """Runs once over inert rows, so that kernels are compiled and workspaces allocated."""
        torch.cuda.synchronize(self._state.device)
        run()
        torch.cuda.synchronize(self._state.device)
        torch.cuda.empty_cache()  # as capturing does; what is reserved now does not count as the graph's

    def _record(self, run: Callable[[], Left]) -> Callable[[], Left]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # NCCL's threads are at work
            left = run()

        def replay() -> Left:
            graph.replay()
            return left

        return replay

    def _cycle(self, shape: Shape, inputs: FrameInputs, marks: Marks | None) -> Cycle:
        """A cycle of the rows that the inputs name, once their changes of the page table are made."""
        mark = marks.start() if marks is not None else no_mark
        state, rows_B = self._state, inputs.rows_B
        state.page_table_RP[inputs.page_rows_C, inputs.columns_C] = inputs.pages_C
        table_BP = state.page_table_RP[rows_B]
        sampling = state.sampling(rows_B, shape.needs)
        return Cycle(self._pair, state, rows_B, table_BP, sampling, shape.k, mark, shape.needs.num_logprobs)

    def describe(self) -> dict[str, Any]:
        """Frames so far, as plain data for JSON."""
        frames = self._frames.values()
        return {
            "captured": sum(frame.why_eager is None for frame in frames),
            "eager": [
                {"rows": f.shape.num_rows, "k": f.shape.k, "sampling": f.shape.needs.kind.value, "why": f.why_eager}
                for f in frames
                if f.why_eager is not None
            ],
            "capture_s": round(sum(frame.capture_s for frame in frames), 3),
            "graph_bytes": sum(frame.capture_bytes for frame in frames),
            "dropped": self.num_dropped,
            "replays": self.num_replays,
            "eager_replays": self.num_eager,
        }


def _free_generator(device: torch.device) -> None:
    """After a capture that failed, torch's generator still waits for its end and refuses every draw: gives it a state
    of its own again."""
    fresh = torch.Generator(device)
    fresh.seed()
    torch.cuda.default_generators[device.index or 0].graphsafe_set_state(fresh.graphsafe_get_state())
