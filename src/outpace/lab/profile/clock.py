"""One stretch of decoding as a client sees it, and the phases of the cycles in it.

The clock starts some tokens after the first one: the prefill is over, and whatever is to watch is set up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from statistics import fmean

from outpace import LLM, SamplingParams
from outpace.engine.phase_log import PhaseLog
from outpace.errors import EngineError
from outpace.types import CyclePlan, Plan

NUM_SETTLING = 2
"""Pieces behind the first that are not timed: on a GPU one forward is always in flight, and the device may have had
time for it while a profiler started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of one answer."""

    tokens: int
    cycles: int
    seconds: float
    cpu_s: float
    """Of this process: on a CPU, what was computed, however busy the machine was."""
    began: float
    """By `time.perf_counter`."""
    context: float
    """Tokens before the token in the middle."""
    accepted_at: tuple[int, ...]
    drafted_at: tuple[int, ...]
    """Of the whole answer."""


def decode(
    llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, watching: AbstractContextManager[object]
) -> Window:
    """Answers a prompt and times it from the settling on, inside of `watching`.

    Raises:
        EngineError: the answer ended before anything could be timed.
    """
    stream = llm.stream(prompt_ids, params)
    before = [next(stream)]
    with watching:
        before += islice(stream, NUM_SETTLING)
        began, began_cpu = time.perf_counter(), time.process_time()
        timed = list(stream)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    if not timed:
        raise EngineError(f"the answer ended after {len(before)} pieces, before anything was timed; use another prompt")
    tokens = sum(len(chunk.token_ids) for chunk in timed)
    settled = len(prompt_ids) + sum(len(chunk.token_ids) for chunk in before)
    stats = timed[-1].stats
    return Window(
        tokens=tokens,
        cycles=stats.cycles - before[-1].stats.cycles,
        seconds=seconds,
        cpu_s=cpu_s,
        began=began,
        context=settled + tokens / 2,
        accepted_at=stats.accepted_at,
        drafted_at=stats.drafted_at,
    )


@dataclass
class CycleTimes(PhaseLog):
    """Stands in for an engine's log of phases, and keeps what it is told of each cycle."""

    found: list[tuple[float, dict[str, float] | None]] = field(default_factory=list)
    """When each cycle was enqueued, and its phases."""

    def __post_init__(self) -> None:
        super().__init__()

    def enqueued(self, plan: Plan, at: float) -> None:
        super().enqueued(plan, at)
        if isinstance(plan, CyclePlan):
            self.found.append((at, None))

    def took(self, plan: CyclePlan, phases: Mapping[str, float]) -> None:
        super().took(plan, phases)
        place = next(place for place, (_, known) in enumerate(self.found) if known is None)
        self.found[place] = (self.found[place][0], dict(phases))

    def since(self, began: float) -> tuple[dict[str, float], float]:
        """Mean seconds of each phase, and between the cycles, of cycles that were enqueued since then."""
        cycles = [(at, phases) for at, phases in self.found if at >= began and phases is not None]
        names = cycles[0][1]
        gaps = [after - at - sum(phases.values()) for (at, phases), (after, _) in pairwise(cycles)]
        means = {name: fmean(phases[name] for _, phases in cycles) for name in names}
        return means, fmean(gaps) if gaps else 0.0


@contextmanager
def cycle_times(llm: LLM) -> Iterator[CycleTimes]:
    """Keeps the times of cycles that run inside."""
    own, llm.engine.phases = llm.engine.phases, (kept := CycleTimes())
    try:
        yield kept
    finally:
        llm.engine.phases = own
