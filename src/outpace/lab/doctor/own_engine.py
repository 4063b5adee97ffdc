"""Runs our engine with a drafter and without, takes its cycles apart, and makes a case of it as a log would.

Both share the target; prompts are answered in mirrored order, so that drift of the machine falls on both alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outpace import LLM, Chunk, RequestStats, SamplingParams
from outpace.lab.doctor.case import Case
from outpace.lab.doctor.evidence import Phases, Run, Value, Window
from outpace.lab.doctor.finding import Cite
from outpace.lab.intervals.bootstrap import MIN_VALUES
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import Over
from outpace.lab.timing.answer import Timing, time_answer
from outpace.lab.timing.samples import Sample, mirrored, speed_ratio

ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False, "control": "fixed"}
"""One request at a time, nothing kept, k drafts in every cycle: what is measured is speculation, not control."""


WARM_UP = 16
"""Tokens of the answer before, which is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Answers of one engine."""

    timings: tuple[Timing, ...]
    stats: RequestStats
    """Of all of them."""

    @property
    def tok_s(self) -> float:
        return sum(t.num_decoded for t in self.timings) / max(1e-9, sum(t.decode_s for t in self.timings))

    def samples(self, num_rounds: int) -> list[Sample]:
        """By prompt, whose rounds follow each other."""
        prompts = [self.timings[at : at + num_rounds] for at in range(0, len(self.timings), num_rounds)]
        return [Sample(tokens=[t.num_decoded for t in each], seconds=[t.decode_s for t in each]) for each in prompts]


def warm_up(engines: Sequence[LLM], prompt: Sequence[int], params: SamplingParams) -> None:
    """Has each engine answer once, untimed."""
    for engine in engines:
        _timed(engine, prompt, replace(params, max_tokens=min(WARM_UP, params.max_tokens)))


def time_both(
    plain: LLM, speculative: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, num_rounds: int
) -> tuple[Timed, Timed]:
    """Answers of both, (plain, speculative), warm already."""
    engines = (plain, speculative)
    kept: tuple[list[tuple[Timing, RequestStats]], ...] = ([], [])
    for ids in prompts:
        for index in mirrored(len(engines), num_rounds):
            kept[index].append(_timed(engines[index], ids, params))
    first, second = (
        Timed(timings=tuple(t for t, _ in found), stats=RequestStats.total(stats for _, stats in found))
        for found in kept
    )
    return first, second


def time_one(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Timed:
    """Answers of one engine, once each."""
    found = [_timed(llm, ids, params) for ids in prompts]
    return Timed(timings=tuple(t for t, _ in found), stats=RequestStats.total(stats for _, stats in found))


def case_of(llm: LLM, plain: Timed, speculative: Timed, phases: Mapping[str, float], num_rounds: int) -> Case:
    """What was measured in so many rounds, with the seconds of each phase, as a case."""
    name = llm.target.source.name
    cycles = max(1, speculative.stats.cycles)
    asked = {"k": llm.config.k, "num_speculative_tokens": llm.config.k}
    return Case(
        subject=Run(
            source=name,
            kind="engine",
            engine="outpace",
            asked={key: Value(value, Cite(name)) for key, value in asked.items()},
            running=1,
            over_plain=_over_plain(plain.samples(num_rounds), speculative.samples(num_rounds)),
            windows=_windows(f"{name} with its drafter", speculative, speculative=True),
            phases=[Phases(Cite(name), cycles, {part: 1e3 * cycles * s for part, s in phases.items()})],
            per_position=speculative.stats.acceptance_by_position,
            per_position_cite=Cite(name),
        ),
        plain_run=Run(
            source=name,
            kind="engine",
            engine="outpace",
            running=1,
            by_running={1: _windows(f"{name} plain", plain, speculative=False)},
        ),
    )


def _over_plain(plain: Sequence[Sample], speculative: Sequence[Sample]) -> tuple[Interval, Over]:
    over = Over(num=len(plain), least=MIN_VALUES, name="prompts", flag="--num-prompts")
    return speed_ratio(speculative, plain), over


def _windows(source: str, timed: Timed, *, speculative: bool) -> list[Window]:
    """One for each answer that ran a cycle."""
    return [
        Window(Cite(source), t.cycles, t.num_decoded, t.decode_s, None, speculative)
        for t in timed.timings
        if t.cycles and t.decode_s > 0.0
    ]


def _timed(llm: LLM, ids: Sequence[int], params: SamplingParams) -> tuple[Timing, RequestStats]:
    chunks: list[Chunk] = []
    timing = time_answer(llm, ids, params, chunks.append)
    return timing, chunks[-1].stats
