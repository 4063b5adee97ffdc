"""Short prefills as frames: a chunk that is filled up to one of a few lengths, over buffers that never move.

Operation by operation a short prompt takes the host several times what the device needs for it, and everybody else's
decoding waits meanwhile. Places that fill a chunk up write to the trash page, and nothing reads what comes of them.

Long chunks keep the device busy by themselves, and run as they come; so do those with log-probabilities of prompts or
under grammars, which need what the host brings.

Shapes: B rows, S tokens a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.engine.frame_inputs import PrefillInputs, changes_of
from outpace.engine.graphs import Recorded, summary
from outpace.speculation.chosen import Chosen
from outpace.speculation.pair import Pair
from outpace.speculation.prefill import prefill
from outpace.speculation.state import State
from outpace.types import Needs, PrefillPlan

LENGTHS = (16, 32, 64, 128, 256)
"""Tokens a row, ascending; all rows together take at most as many as the last."""


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """What a prefill's frame is made for."""

    num_rows: int
    num_tokens: int
    """Of each row's chunk, filled up."""
    fills_drafter: bool
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFrame:
    """Buffers of one shape, and what runs over them."""

    shape: PrefillShape
    inputs: PrefillInputs
    graph: Recorded


def shape_of(plan: PrefillPlan, buckets: Sequence[int]) -> PrefillShape | None:
    """The shape that takes a plan; None where it is no frame.

    Args:
        plan: the prefill.
        buckets: numbers of rows that frames have, ascending.
    """
    if plan.prompt is not None or plan.needs.masked:
        return None
    longest = max(map(len, plan.chunks))
    num_rows = next(bucket for bucket in buckets if bucket >= len(plan.rows))
    num_tokens = next((length for length in LENGTHS if length >= longest), None)
    if num_tokens is None or num_rows * num_tokens > LENGTHS[-1]:
        return None
    return PrefillShape(num_rows, num_tokens, plan.fills_drafter, plan.needs)


def inputs_of(shape: PrefillShape, state: State, page_size: int) -> PrefillInputs:
    """Over inert rows."""
    num_changes = changes_of(shape.num_rows, shape.num_tokens, page_size)
    return PrefillInputs(shape.num_rows, shape.num_tokens, num_changes, state.inert, state.device)


def run_prefill(pair: Pair, state: State, shape: PrefillShape, inputs: PrefillInputs) -> Chosen:
    """The prefill of the rows that the inputs name, once their changes of the page table are made."""
    rows_B, needs = inputs.rows_B, shape.needs
    inputs.change(state.page_table_RP)
    chosen = prefill(
        pair,
        state,
        rows_B,
        inputs.tokens_BS,
        inputs.num_tokens_B,
        state.page_table_RP[rows_B],
        state.sampling(rows_B, needs),
        ends_B=inputs.ends_B if needs.processed else None,
        fills_drafter=shape.fills_drafter,
        num_logprobs=needs.num_logprobs,
    )
    state.length_R[-1:].zero_()  # the inert row's stays 0
    return chosen


class PrefillCounts:
    """How prefills ran."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.num_eager = 0
        """Of them, those whose frame is no graph."""
        self.num_unframed = 0
        """Others, which no frame takes."""

    def count(self, frame: PrefillFrame | None) -> None:
        """One ran, over that frame."""
        self.num_unframed += frame is None
        self.num_replays += frame is not None
        self.num_eager += frame is not None and frame.graph.why_eager is not None

    def describe(self, frames: Sequence[PrefillFrame]) -> dict[str, Any]:
        """Beside the frames that there are, as plain data for JSON."""
        return {
            **summary((frame.graph, _told(frame.shape)) for frame in frames),
            "replays": self.num_replays,
            "eager_replays": self.num_eager,
            "no_frame": self.num_unframed,
        }


def _told(shape: PrefillShape) -> dict[str, Any]:
    return {
        "rows": shape.num_rows,
        "tokens": shape.num_tokens,
        "fills_drafter": shape.fills_drafter,
        "sampling": shape.needs.kind.value,
    }
