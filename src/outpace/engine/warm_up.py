"""What is compiled and captured before the first request, so that no early request waits for it.

Shapes are taken in the order in which a server meets them: cycles of few rows first, and for each number of rows
greedy, sampled and truncated, at every k that control may choose; short prefills of one row behind cycles of one. What
the budget of time leaves out is captured when it is first needed.

    `compile_common`, before costs are measured: the kernels of a prefill and of cycles, in several processes.
    `capture_common`, after: graphs, one after another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from outpace.config import ResolvedConfig
from outpace.engine.calibrate import drafts_of
from outpace.engine.frames import Shape
from outpace.engine.prefill_frames import LENGTHS, PrefillShape
from outpace.engine.runner import Runner
from outpace.models.layers import Attention
from outpace.models.mixture import Mixture
from outpace.models.target import Target
from outpace.types import CatchUpPlan, Needs, PrefillPlan, SamplingKind

SHORT_CHUNK = 16
"""Prompt tokens of the shorter of two prefills."""
LOOKS_FOR = 0.6
"""Share of the time until which it may find out what is to be compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """How many kernels were, and how long it took."""

    seconds: float
    num_kernels: int


def common_shapes(runner: Runner, config: ResolvedConfig) -> list[Shape]:
    """In the order in which they are compiled and captured."""
    ks = drafts_of(config)
    return [Shape(bucket, k, Needs(kind)) for bucket in runner.buckets for kind in SamplingKind for k in ks]


def common_prefills(runner: Runner, config: ResolvedConfig, *, fills_drafter: bool) -> list[PrefillShape]:
    """Of one row, greedy and sampled, as long as its chunks may be; in the order in which they are captured."""
    longest = _longest(config)
    lengths = [num for num, shorter in zip(LENGTHS, (0, *LENGTHS), strict=False) if shorter < longest]
    kinds = (SamplingKind.GREEDY, SamplingKind.SAMPLED)
    return [PrefillShape(runner.buckets[0], num, fills_drafter, Needs(kind)) for num in lengths for kind in kinds]


def compile_common(runner: Runner, config: ResolvedConfig) -> Compiled:
    """Compiles the kernels of a prefill and of common shapes, if there will be graphs. Nobody may use the first row.

    Every rank does so by itself: how far it comes within the time is nobody else's business.
    """
    began = time.perf_counter()
    frames, device = runner.frames, runner.state.device
    if frames is None or config.capture_s == 0 or device.type != "cuda":
        return Compiled(seconds=0.0, num_kernels=0)
    from outpace.kernels.gpu.compiling import compile_all, find

    def rehearse(shapes: Sequence[Shape | PrefillShape]) -> None:
        for shape in shapes:
            if time.perf_counter() - began < LOOKS_FOR * config.capture_s:
                with suppress(RuntimeError):  # its capture will say so
                    frames.rehearse(shape)

    shapes = common_shapes(runner, config)
    few = [shape for shape in shapes if shape.num_rows == shapes[0].num_rows]
    prefills = common_prefills(runner, config, fills_drafter=config.k > 0)
    of_each_length = [shape for shape in prefills if shape.needs.kind is SamplingKind.GREEDY]

    def rehearse_few() -> None:
        _prefill(runner, config)
        rehearse(few)

    def compile_found(work: Callable[[], None]) -> int:
        kernels = find(work)
        seconds = config.capture_s - (time.perf_counter() - began)
        return compile_all(kernels, seconds, num_beside=runner.target.group.size)

    with torch.cuda.device(device), runner.rehearsing():
        num = compile_found(rehearse_few)  # the others are found the sooner with these at hand
        num += compile_found(partial(rehearse, [*prefills[:2], *of_each_length[1:], *shapes[len(few) :]]))
        _prefill(runner, config)
    return Compiled(seconds=time.perf_counter() - began, num_kernels=num)


def capture_common(
    runner: Runner, config: ResolvedConfig, compiled: Compiled, *, fills_drafter: bool
) -> dict[str, Any]:
    """Captures common shapes in what is left of `config.capture_s`; what came of it, as plain data for JSON.

    Args:
        runner: captures them, if there are graphs.
        config: settings.
        compiled: what was done before, whose time counts.
        fills_drafter: whether prompts are made ready for drafts, as control sees it now.
    """
    began = time.perf_counter()
    cycles, prefills = list[Shape](), list[PrefillShape]()
    if runner.frames is not None and config.capture_s:
        cycles, prefills = common_shapes(runner, config), common_prefills(runner, config, fills_drafter=fills_drafter)
    num_few = sum(shape.num_rows == cycles[0].num_rows for shape in cycles)
    shapes: list[Shape | PrefillShape] = [*cycles[:num_few], *prefills, *cycles[num_few:]]
    num_done = 0
    while num_done < len(shapes) and time.perf_counter() - began + compiled.seconds < config.capture_s:
        runner.capture(shapes[num_done])
        num_done += 1
    num_cycles = sum(isinstance(shape, Shape) for shape in shapes[:num_done])
    num_prefills = num_done - num_cycles
    return {
        "compiled": compiled.num_kernels,
        "compile_s": round(compiled.seconds, 3),
        "captured": num_cycles,
        "capture_s": round(time.perf_counter() - began, 3),
        "left_for_later": len(cycles) - num_cycles,
        "prefill": {"captured": num_prefills, "left_for_later": len(prefills) - num_prefills},
    }


def prefill_lengths(target: Target, longest: int) -> list[int]:
    """Ascending: of a short prompt, of the longest chunk, of one for each tiling that attention has for chunks longer
    than frames, and of one for each tile that a mixture's experts take."""
    lengths = {min(SHORT_CHUNK, longest), longest}
    attention = next((module for module in target.modules() if isinstance(module, Attention)), None)
    if attention is not None:
        lengths.update(num for num in attention.tiling_changes(longest) if num > LENGTHS[-1])
    mixture = next((module for module in target.modules() if isinstance(module, Mixture)), None)
    if mixture is not None:
        lengths.update(mixture.tile_changes(longest))
    return sorted(lengths)


def _longest(config: ResolvedConfig) -> int:
    """Tokens of the longest chunk."""
    return min(config.prefill_chunk, config.max_context - 1)


def _prefill(runner: Runner, config: ResolvedConfig) -> None:
    """Prompts of `prefill_lengths`, then catch-ups as long, operation by operation, into the trash page, where the
    tables of unused rows lead."""
    lengths = prefill_lengths(runner.target, _longest(config))
    for num_tokens in lengths:
        plan = PrefillPlan(
            rows=(0,),
            chunks=((0,) * num_tokens,),
            ends=(False,),
            fills_drafter=config.k > 0,
            needs=Needs(),
            bound=num_tokens,
        )
        with runner.without_graphs():
            runner.enqueue(plan).read()
        runner.state.length_R[0] = 0
    for num in sorted({min(num_tokens, config.history) for num_tokens in lengths}) if config.k else ():
        runner.enqueue(CatchUpPlan(rows=(0,), starts=(0,), nums=(num,), missing=((),), cold=(False,), bound=num))
    runner.state.num_pending_R[0] = 0
