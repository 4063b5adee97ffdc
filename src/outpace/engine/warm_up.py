"""What is compiled and captured before the first request, so that no early request waits for it.

Shapes are taken in the order in which a server meets them: few rows first, and for each number of rows greedy, sampled
and truncated, at every k that control may choose. What the budget of time leaves out is captured when it is first
needed.
"""

from __future__ import annotations

import time
from typing import Any

from outpace.config import ResolvedConfig
from outpace.engine.calibrate import choices
from outpace.engine.frames import Shape
from outpace.engine.runner import Runner
from outpace.types import Needs, PrefillPlan, SamplingKind

SHORT_CHUNK = 16
"""Prompt tokens of the shorter of two prefills."""


def common_shapes(runner: Runner, config: ResolvedConfig) -> list[Shape]:
    """In the order in which they are captured."""
    ks = choices(config)
    return [Shape(bucket, k, Needs(kind)) for bucket in runner.buckets for kind in SamplingKind for k in ks]


def warm_up(runner: Runner, config: ResolvedConfig) -> dict[str, Any]:
    """Prefills once and captures common shapes until `config.capture_s` is over; what came of it, as data for JSON.

    Nobody may be using the first row. Without graphs there is nothing to do.
    """
    began = time.perf_counter()
    if runner.frames is None or config.capture_s == 0:
        return {"seconds": 0.0, "captured": 0, "left_for_later": 0}
    for num_tokens in sorted({min(SHORT_CHUNK, _longest(config)), _longest(config)}):
        _prefill(runner, num_tokens, fills_drafter=config.k > 0)
    shapes = common_shapes(runner, config)
    num_done = 0
    while num_done < len(shapes) and time.perf_counter() - began < config.capture_s:
        runner.frames.of(shapes[num_done])
        num_done += 1
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "captured": num_done,
        "left_for_later": len(shapes) - num_done,
    }


def _longest(config: ResolvedConfig) -> int:
    return min(config.prefill_chunk, config.max_context - 1)


def _prefill(runner: Runner, num_tokens: int, *, fills_drafter: bool) -> None:
    """Into the trash page, where the tables of unused rows lead."""
    plan = PrefillPlan(
        rows=(0,),
        chunks=((0,) * num_tokens,),
        ends=(False,),
        fills_drafter=fills_drafter,
        needs=Needs(),
        bound=num_tokens,
    )
    runner.enqueue(plan).read()
    runner.state.length_R[0] = 0
    runner.state.num_pending_R[0] = 0
