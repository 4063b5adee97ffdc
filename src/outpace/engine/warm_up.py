"""What is compiled and captured before the first request, so that no early request waits for it.

Shapes are taken in the order in which a server meets them: few rows first, and for each number of rows greedy, sampled
and truncated, at every k that control may choose. What the budget of time leaves out is captured when it is first
needed.

    `compile_common`, before costs are measured: a prefill, and cycles over inert rows, many at a time.
    `capture_common`, after: graphs, one after another.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from outpace.config import ResolvedConfig
from outpace.engine.calibrate import drafts_of
from outpace.engine.frames import Frames, Shape
from outpace.engine.runner import Runner
from outpace.types import Needs, PrefillPlan, SamplingKind

logger = logging.getLogger(__name__)

SHORT_CHUNK = 16
"""Prompt tokens of the shorter of two prefills."""
COMPILES_FOR = 0.6
"""Share of the time that may go to compiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What was compiled, and how long it took."""

    seconds: float
    num_shapes: int


def common_shapes(runner: Runner, config: ResolvedConfig) -> list[Shape]:
    """In the order in which they are compiled and captured."""
    ks = drafts_of(config)
    return [Shape(bucket, k, Needs(kind)) for bucket in runner.buckets for kind in SamplingKind for k in ks]


def compile_common(runner: Runner, config: ResolvedConfig) -> Compiled:
    """Prefills, and runs common shapes over inert rows. Nobody may be using the first row; without graphs, nothing.

    Every rank does so by itself: how far it comes within the time is nobody else's business.
    """
    began = time.perf_counter()
    frames = runner.frames
    if frames is None or config.capture_s == 0:
        return Compiled(seconds=0.0, num_shapes=0)
    until = began + COMPILES_FOR * config.capture_s
    tasks = [
        partial(_prefill, runner, config),
        *(partial(_rehearse, frames, s, until) for s in common_shapes(runner, config)),
    ]
    device = runner.state.device
    with runner.apart():
        if device.type == "cuda":
            from outpace.kernels.gpu.compiling import run_together

            done = run_together(tasks, device)
        else:
            done = [task() for task in tasks]
    return Compiled(seconds=time.perf_counter() - began, num_shapes=sum(done[1:]))


def capture_common(runner: Runner, config: ResolvedConfig, compiled: Compiled) -> dict[str, Any]:
    """Captures common shapes in what is left of `config.capture_s`; what came of it, as plain data for JSON."""
    began = time.perf_counter()
    shapes = common_shapes(runner, config) if runner.frames is not None and config.capture_s else []
    num_done = 0
    while num_done < len(shapes) and time.perf_counter() - began + compiled.seconds < config.capture_s:
        runner.capture(shapes[num_done])
        num_done += 1
    return {
        "compiled": compiled.num_shapes,
        "compile_s": round(compiled.seconds, 3),
        "captured": num_done,
        "capture_s": round(time.perf_counter() - began, 3),
        "left_for_later": len(shapes) - num_done,
    }


def _rehearse(frames: Frames, shape: Shape, until: float) -> bool:
    """Whether the shape was run; what goes wrong is said when its graph is captured, and counted there."""
    if time.perf_counter() >= until:
        return False
    try:
        frames.rehearse(shape)
    except RuntimeError as error:
        logger.debug("%s could not be compiled ahead: %s", shape, error)
        return False
    return True


def _prefill(runner: Runner, config: ResolvedConfig) -> bool:
    """A short prompt and the longest chunk, into the trash page, where the tables of unused rows lead."""
    longest = min(config.prefill_chunk, config.max_context - 1)
    for num_tokens in sorted({min(SHORT_CHUNK, longest), longest}):
        plan = PrefillPlan(
            rows=(0,),
            chunks=((0,) * num_tokens,),
            ends=(False,),
            fills_drafter=config.k > 0,
            needs=Needs(),
            bound=num_tokens,
        )
        runner.enqueue(plan).read()
        runner.state.length_R[0] = 0
        runner.state.num_pending_R[0] = 0
    return True
