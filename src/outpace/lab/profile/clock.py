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
    llm: LLM,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    watching: AbstractContextManager[object],
    most: int | None = None,
) -> Window:
    """Answers a prompt and times it from the settling on, inside of `watching`.

    Args:
        llm: which answers.
        prompt_ids, params: the request.
        watching: entered when the first piece has come, and left before the answer is broken off.
        most: pieces that are timed, each of a cycle; then the answer is broken off. None times all of it.

    Raises:
        EngineError: the answer ended before anything could be timed.
    """
    stream = llm.stream(prompt_ids, params)
    before = [next(stream)]
    with watching:
        before += islice(stream, NUM_SETTLING)
        began, began_cpu = time.perf_counter(), time.process_time()
        timed = list(islice(stream, most))
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


@dataclass(slots=True)
class Cycle:
    """One cycle, as the engine told of it."""

    at: float
    """When it was enqueued, by `time.perf_counter`."""
    follows: bool
    """The forward before it was a cycle too, so that what lies between is a gap."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by name, once they are known."""


class CycleTimes(PhaseLog):
    """Stands in for an engine's log of phases, and keeps what it is told of each cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Cycle] = []
        self._follows = False
        self._num_known = 0

    def enqueued(self, plan: Plan, at: float) -> None:
        super().enqueued(plan, at)
        if isinstance(plan, CyclePlan):
            self.found.append(Cycle(at, self._follows))
        self._follows = isinstance(plan, CyclePlan)

    def took(self, plan: CyclePlan, phases: Mapping[str, float]) -> None:
        super().took(plan, phases)
        self.found[self._num_known].phases = dict(phases)
        self._num_known += 1

    def since(self, began: float = 0.0) -> tuple[dict[str, float], float]:
        """Mean seconds of each phase, and between one cycle and the next, of cycles that were enqueued since then.

        Raises:
            EngineError: no phase of any of them is known.
        """
        cycles = [cycle for cycle in self.found if cycle.at >= began and cycle.phases]
        if not cycles:
            raise EngineError("the answers were too short to time a cycle; ask for more tokens or use other prompts")
        means = {name: fmean(cycle.phases[name] for cycle in cycles) for name in cycles[0].phases}
        gaps = [
            after.at - before.at - sum(before.phases.values()) for before, after in pairwise(cycles) if after.follows
        ]
        return means, fmean(gaps) if gaps else 0.0


@contextmanager
def cycle_times(llm: LLM) -> Iterator[CycleTimes]:
    """Keeps the times of cycles that run inside."""
    own, llm.engine.phases = llm.engine.phases, (kept := CycleTimes())
    try:
        yield kept
    finally:
        llm.engine.phases = own
