"""Frames: a forward of one shape over buffers that never move, so that a GPU can replay it as one graph.

A cycle's shape is (rows, k, what choosing tokens takes); short prefills have frames too (`prefill_frames`). Inputs
(`frame_inputs`) are row numbers and the pages that were added since; everything else a cycle reads lies in the state.
On a CPU, or where a graph cannot be captured (`graphs`), a replay calls the cycle itself.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch

from outpace.engine.cut import CutCycle
from outpace.engine.frame_inputs import FrameInputs, changes_of
from outpace.engine.graphs import Recorded, Recorder, summary
from outpace.engine.marks import Marks
from outpace.engine.prefill_frames import PrefillCounts, PrefillFrame, PrefillShape, inputs_of, run_prefill
from outpace.speculation.chosen import Chosen
from outpace.speculation.cycle import Cycle, no_mark
from outpace.speculation.pair import Pair
from outpace.speculation.state import State
from outpace.types import Needs

logger = logging.getLogger(__name__)
MOST_FRAMES = 512
"""Kept; beyond, the one that was used the longest time ago goes. A graph takes a few megabytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a cycle's frame is made for."""

    num_rows: int
    k: int
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Buffers of one shape, and what runs over them."""

    shape: Shape
    inputs: FrameInputs
    graph: Recorded
    cut: CutCycle | None
    """Runs in its stead where some row is under a grammar."""
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
        self._frames: OrderedDict[Shape | PrefillShape, Frame | PrefillFrame] = OrderedDict()
        """The one that was used last at the end."""
        self._most = most
        self.num_dropped = 0
        """Frames that had to go for others."""
        self._recorder = Recorder(state.device, pair.target.group)
        self.num_replays = 0
        """Of cycles."""
        self.num_eager = 0
        """Of them, those whose frame is no graph."""
        self.prefills = PrefillCounts()

    @overload
    def of(self, shape: Shape) -> Frame: ...

    @overload
    def of(self, shape: PrefillShape) -> PrefillFrame: ...

    def of(self, shape: Shape | PrefillShape) -> Frame | PrefillFrame:
        """The frame of a shape, captured now if it is not there."""
        if shape not in self._frames:
            if len(self._frames) >= self._most:
                self._drop(1)
            self._frames[shape] = self._make(shape) if isinstance(shape, Shape) else self._make_prefill(shape)
        self._frames.move_to_end(shape)
        return self._frames[shape]

    def _drop(self, num: int) -> None:
        """Frees those that were used the longest time ago."""
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)  # one of them may be running
        for _ in range(num):
            self._frames.popitem(last=False)
        self.num_dropped += num

    def _drop_all(self) -> bool:
        """Says whether there were any."""
        there_are = bool(self._frames)
        if there_are:
            self._drop(len(self._frames))
        return there_are

    @torch.inference_mode()
    def rehearse(self, shape: Shape | PrefillShape) -> None:
        """Runs what a shape stands for over inert rows, without a graph and without keeping anything."""
        if isinstance(shape, PrefillShape):
            run_prefill(self._pair, self._state, shape, inputs_of(shape, self._state, self._page_size))
        else:
            self._cycle(shape, self._inputs(shape), None).run()

    def _inputs(self, shape: Shape) -> FrameInputs:
        """Over inert rows."""
        num_changes = changes_of(shape.num_rows, shape.k + 1, self._page_size)
        return FrameInputs(shape.num_rows, num_changes, self._state.inert, self._state.device)

    def _make(self, shape: Shape) -> Frame:
        inputs = self._inputs(shape)
        marks = Marks(self._state.device) if self._timed else None

        def begin() -> Cycle:
            return self._cycle(shape, inputs, marks)

        def run() -> Chosen:
            return begin().run()

        cut = self._cut(shape, begin)
        graph = self._record("cycles", shape, run, cut)
        if graph.why_eager is not None:
            cut = self._cut(shape, begin)  # of which no part is a graph
        return Frame(shape=shape, inputs=inputs, graph=graph, cut=cut, marks=marks)

    def _make_prefill(self, shape: PrefillShape) -> PrefillFrame:
        inputs = inputs_of(shape, self._state, self._page_size)

        def run() -> Chosen:
            return run_prefill(self._pair, self._state, shape, inputs)

        return PrefillFrame(shape=shape, inputs=inputs, graph=self._record("prefills", shape, run))

    def _record(
        self, what: str, shape: Shape | PrefillShape, run: Callable[[], Chosen], cut: CutCycle | None = None
    ) -> Recorded:
        graph = self._recorder.record(run, cut, self._drop_all)
        if graph.why_eager is not None and self._state.device.type == "cuda":
            logger.warning("%s of %s run without a graph, and slower: %s", what, shape, graph.why_eager)
        return graph

    def _cut(self, shape: Shape, begin: Callable[[], Cycle]) -> CutCycle | None:
        """Its parts, not captured; None where no row is under a grammar."""
        if not shape.needs.masked:
            return None
        target, device = self._pair.target, self._state.device
        return CutCycle(begin, shape.num_rows, shape.k, target.config.vocab_size, device, target.group)

    def _cycle(self, shape: Shape, inputs: FrameInputs, marks: Marks | None) -> Cycle:
        """A cycle of the rows that the inputs name, once their changes of the page table are made."""
        mark = marks.start() if marks is not None else no_mark
        state, rows_B = self._state, inputs.rows_B
        inputs.change(state.page_table_RP)
        table_BP = state.page_table_RP[rows_B]
        sampling = state.sampling(rows_B, shape.needs)
        return Cycle(self._pair, state, rows_B, table_BP, sampling, shape.k, mark, shape.needs.num_logprobs)

    def describe(self) -> dict[str, Any]:
        """Frames so far, as plain data for JSON: those of cycles, and apart those of prefills."""
        frames = [frame for frame in self._frames.values() if isinstance(frame, Frame)]
        prefills = [frame for frame in self._frames.values() if isinstance(frame, PrefillFrame)]
        return {
            **summary((frame.graph, _told(frame.shape)) for frame in frames),
            "dropped": self.num_dropped,
            "replays": self.num_replays,
            "eager_replays": self.num_eager,
            "prefill": self.prefills.describe(prefills),
        }


def _told(shape: Shape) -> dict[str, Any]:
    return {"rows": shape.num_rows, "k": shape.k, "sampling": shape.needs.kind.value}
