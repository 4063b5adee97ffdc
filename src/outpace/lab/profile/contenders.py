"""What a profile measures. Side by side, once a round: serving, plain decoding, on a CPU serving while layers note
their calls, and on a GPU serving without graphs. There a profiler traces some cycles when all rounds are over, so that
what it costs is in none of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from outpace import LLM, SamplingParams
from outpace.engine import calibrate
from outpace.errors import EngineError
from outpace.lab.profile.clock import CycleTimes, Window, cycle_times, decode
from outpace.lab.profile.kineto import NUM_TRACED, rows_of, tracing
from outpace.lab.profile.parts import COPIES, GAPS
from outpace.lab.profile.record import PHASES
from outpace.lab.profile.spans import SEPARATOR, watched
from outpace.lab.profile.trace import BETWEEN, Key, take_apart
from outpace.lab.profile.wall import Ran, to_the_innermost

NUM_MARKED = 16
"""Cycles whose phases are timed by events, and as many without any before and behind, at each measurement of graphs."""

Ask = tuple[Sequence[int], SamplingParams]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One round of a contender: all prompts. Seconds a cycle."""

    windows: tuple[Window, ...]
    phases: dict[str, float] = field(default_factory=dict)
    gaps: float | None = None
    """Between cycles; None where they were not seen."""
    marked: float | None = None
    """A cycle in a graph that carries the events which time phases, ÷ one in a graph that serves: neither is of the
    windows, which carry none. None where phases are timed without such."""
    time: dict[Key, float] = field(default_factory=dict)
    """By phase and part."""
    count: dict[Key, float] = field(default_factory=dict)
    unknown: dict[str, float] = field(default_factory=dict)
    why_no_parts: str | None = None

    @property
    def cycle_s(self) -> float:
        return sum(each.seconds for each in self.windows) / sum(each.cycles for each in self.windows)

    @property
    def cpu_s(self) -> float:
        """Of the process."""
        return sum(each.cpu_s for each in self.windows) / sum(each.cycles for each in self.windows)

    @property
    def tok_s(self) -> float:
        return sum(each.tokens for each in self.windows) / sum(each.seconds for each in self.windows)


Contender = Callable[[Sequence[Ask]], Seen]


def plain(llm: LLM) -> Contender:
    """Decodes plainly: no draft, and no drafter in the prefill."""

    def measure(asks: Sequence[Ask]) -> Seen:
        wanted = [(prompt_ids, replace(params, max_k=0)) for prompt_ids, params in asks]
        return Seen(windows=tuple(decode(llm, *ask, nullcontext()) for ask in wanted))

    return measure


def as_they_come(llm: LLM) -> Contender:
    """Cycles that are no graphs: their phases are timed while they serve, and on a CPU what lies between them."""

    def measure(asks: Sequence[Ask]) -> Seen:
        windows, means = [], []
        for ask in asks:
            with eagerly(llm), cycle_times(llm) as times:
                windows.append(decode(llm, *ask, nullcontext()))
            means.append(times.since(windows[-1].began))
        phases = {name: _mean(windows, [each[name] for each, _ in means]) for name in means[0][0]}
        between = _mean(windows, [gap for _, gap in means]) if llm.device.type == "cpu" else None
        return Seen(windows=tuple(windows), phases=phases, gaps=between)

    return measure


def graphs(llm: LLM) -> Contender:
    """Cycles that serve, as graphs, and beside them such that carry events, for their phases and what lies between."""

    def measure(asks: Sequence[Ask]) -> Seen:
        windows = tuple(decode(llm, *ask, nullcontext()) for ask in asks)
        _drain(llm)
        cell = (llm.engine.runner, 1, llm.config.k, round(fmean(each.context for each in windows)), NUM_MARKED)
        bare, marked = calibrate.time_cycles(*cell), calibrate.time_marked(*cell)
        bare += calibrate.time_cycles(*cell)  # on both sides: what comes first may find the device at rest
        return Seen(
            windows=windows,
            phases=means(marked.phases),
            gaps=fmean(marked.gaps) if marked.gaps else None,
            marked=median(marked.cycles) / median(bare),
        )

    return measure


def phases_of(
    llm: LLM, times: CycleTimes, prompt_ids: Sequence[int], params: SamplingParams
) -> tuple[dict[str, float], float]:
    """Mean seconds of each phase and between cycles, of an engine whose answers are timed for another reason.

    On a CPU of the very cycles that were timed. Graphs that serve tell nothing of their phases: on a GPU a prompt is
    answered once more, beside graphs that carry events.

    Args:
        llm: whose cycles they are.
        times: what was kept of the cycles that were timed.
        prompt_ids, params: answered once more on a GPU.

    Raises:
        EngineError: no answer held a whole cycle.
    """
    if llm.device.type == "cpu":
        return times.since()
    seen = graphs(llm)([(prompt_ids, params)])
    return seen.phases, max(0.0, seen.cycle_s - sum(seen.phases.values()))


def spanned(llm: LLM) -> Contender:
    """On a CPU: cycles whose layers note their calls."""

    def measure(asks: Sequence[Ask]) -> Seen:
        windows: list[Window] = []
        means: list[dict[str, float]] = []
        time: dict[Key, float] = defaultdict(float)
        count: dict[Key, float] = defaultdict(float)
        for ask in asks:
            with watched(llm) as rows, cycle_times(llm) as times:
                windows.append(decode(llm, *ask, nullcontext()))
            means.append(times.since(windows[-1].began)[0])
            inside = [Ran(*span) for span in rows if span[1] >= windows[-1].began]
            for name, seconds in to_the_innermost(inside).items():
                phase, _, part = name.partition(SEPARATOR)
                time[phase, part] += seconds
                count[phase, part] += sum(row.name == name for row in inside)
        cycles = sum(each.cycles for each in windows)
        return Seen(
            windows=tuple(windows),
            phases={name: _mean(windows, [each[name] for each in means]) for name in means[0]},
            time={key: value / cycles for key, value in time.items()},
            count={key: value / cycles for key, value in count.items()},
        )

    return measure


def traced(llm: LLM, *, eager: bool) -> Contender:
    """On a GPU: some cycles of each answer while a profiler traces the device."""

    def measure(asks: Sequence[Ask]) -> Seen:
        rows, windows = [], []
        for ask in asks:
            trace = tracing()
            with eagerly(llm) if eager else nullcontext():
                windows.append(decode(llm, *ask, trace, most=NUM_TRACED))
            _drain(llm)
            rows.append(rows_of(trace))
        try:
            found = [take_apart(each, llm.config.k) for each in rows]
        except EngineError as error:  # what was measured before stands without it
            return Seen(windows=tuple(windows), why_no_parts=str(error))
        time = means([each.time for each in found], 1e-6)
        return Seen(
            windows=tuple(windows),
            phases={phase: sum(s for (each, _), s in time.items() if each == phase) for phase in PHASES},
            gaps=time.get((BETWEEN, GAPS), 0.0) + time.get((BETWEEN, COPIES), 0.0),
            time=time,
            count=means([each.count for each in found]),
            unknown=means([each.unknown for each in found], 1e-6),
        )

    return measure


def write_trace(llm: LLM, ask: Ask, path: Path) -> None:
    """A Chrome trace of some cycles of one answer, host and device; slower than anything that is measured."""
    trace = tracing(host=True, device=llm.device.type == "cuda")
    decode(llm, *ask, trace, most=NUM_TRACED)
    _drain(llm)
    trace.export_chrome_trace(str(path))


@contextmanager
def eagerly(llm: LLM) -> Iterator[None]:
    """No graphs inside."""
    _drain(llm)
    with llm.engine.runner.without_graphs():
        yield
        _drain(llm)


def _drain(llm: LLM) -> None:
    """Reads what is still in flight of an answer that ended."""
    for _ in range(1 + llm.engine.runner.num_ahead):
        llm.engine.step()


def means(each: Sequence[Mapping[Any, float]], factor: float = 1.0) -> dict[Any, float]:
    """By name, times a factor; what one of them lacks is 0 there."""
    names = dict.fromkeys(name for one in each for name in one)
    return {name: factor * fmean(one.get(name, 0.0) for one in each) for name in names}


def _mean(windows: Sequence[Window], values: Sequence[float]) -> float:
    """Of a cycle, over windows of so many cycles."""
    return sum(w.cycles * value for w, value in zip(windows, values, strict=True)) / sum(w.cycles for w in windows)
