"""A profile: contenders in interleaved rounds, and one record that says how their figures add up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from statistics import fmean
from typing import Any

from outpace import LLM, SamplingParams
from outpace.errors import ConfigError
from outpace.lab.limits.cycle import cycle_parts
from outpace.lab.limits.rates import Rates, measure_rates
from outpace.lab.profile import contenders
from outpace.lab.profile.contenders import Ask, Contender, Seen
from outpace.lab.profile.parts import OTHER, PARTS
from outpace.lab.profile.record import PHASES, SCHEMA, How, Paired, Part, ProfileRecord, Speed, Way, launch_ms, way_of
from outpace.lab.profile.trace import BETWEEN
from outpace.lab.timing.rounds import interleave, paired_ratio

ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False, "control": "fixed", "eager": False}
"""One request at a time, computed in full each time, k drafts in every cycle, as graphs where there are any."""
PLAIN, SERVED, SERVED_SEEN, EAGER, EAGER_SEEN = "plain", "serving", "serving, watched", "eager", "eager, watched"
SEEN_BY_SPANS = "calls of layers, noted on the host; an instant is the innermost call's, and cost is CPU time"
SEEN_BY_TRACE = "a trace of the device; an instant is that kernel's which has been running longest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """How much is measured."""

    max_tokens: int = 48
    """Tokens of each answer."""
    num_rounds: int = 6
    """Passes over everything that is compared; fewer than 6 give no intervals."""

    def __post_init__(self) -> None:
        for name, low, high in (("max_tokens", 16, 1 << 16), ("num_rounds", 1, 1000)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must lie in {low} … {high}")


def random_prompts(vocab_size: int, length: int, count: int) -> list[list[int]]:
    """For random weights, to which text means nothing."""
    return [random.Random(seed).choices(range(vocab_size), k=length) for seed in range(count)]


def params_of(settings: ProfileSettings) -> SamplingParams:
    """Greedy, and as long as asked for whatever the text says."""
    return SamplingParams(max_tokens=settings.max_tokens, ignore_eos=True)


def profile(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    settings: ProfileSettings,
    machine: Callable[[], dict[str, Any]],
    progress: Callable[[str], None] = lambda text: None,
) -> ProfileRecord:
    """Takes the cycles of one stream apart.

    Args:
        llm: made with the settings in `ENGINE`.
        prompts: token ids; every contender answers all of them once a round.
        settings: how much to measure.
        machine: tells the fingerprint.
        progress: told what is being done.

    Raises:
        EngineError: an answer was too short, or a profiler cannot see the device.
    """
    facts = machine()
    seen, rates = _measured(llm, [(prompt, params_of(settings)) for prompt in prompts], settings.num_rounds, progress)
    ways = _ways(seen, on_cpu=llm.device.type == "cpu")
    context = fmean(window.context for each in seen[SERVED] for window in each.windows)
    stood_of_tried = _acceptance(seen[SERVED][0])
    limits, why_no_limits = _limits(llm, rates, round(context))
    return ProfileRecord(
        kind="profile",
        schema=SCHEMA,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=llm.target.source.name,
        device=str(llm.device),
        dtype=str(llm.dtype).removeprefix("torch."),
        k=llm.config.k,
        context=context,
        num_rounds=settings.num_rounds,
        prompts=len(prompts),
        simulated=bool(llm.config.simulate_acceptance),
        ways=tuple(ways),
        why_one_way=None if EAGER in seen else _why_one_way(llm),
        launch_ms=launch_ms(ways),
        plain=_speed(seen[PLAIN]) if PLAIN in seen else None,
        speedup=_speedup(seen),
        break_even=_break_even(seen),
        acceptance_at=tuple(stood / tried if tried else 0.0 for stood, tried in stood_of_tried),
        judged_at=tuple(tried for _, tried in stood_of_tried),
        limits_ms=limits,
        why_no_limits=why_no_limits,
        rates=rates.as_dict(),
        seen_by=SEEN_BY_SPANS if llm.device.type == "cpu" else SEEN_BY_TRACE,
        unknown=_means([{name: 1e3 * s for name, s in each.unknown.items()} for each in seen[SERVED_SEEN]]),
        notes=tuple(_notes(llm, ways[0])),
        settings=llm.describe(),
        machine=facts,
    )


def _measured(
    llm: LLM, asks: Sequence[Ask], num_rounds: int, progress: Callable[[str], None]
) -> tuple[dict[str, list[Seen]], Rates]:
    """What was seen of each contender, round by round, and the device's best rates meanwhile."""
    rates = [measure_rates(llm.device)]
    named = _contenders(llm)
    for name, measure in named.items():
        progress(f"warming up: {name}")
        measure(asks[:1])

    def end_round(done: int) -> None:
        progress(f"round {done} of {num_rounds}")
        rates.append(measure_rates(llm.device))

    rounds = interleave(list(named), num_rounds, lambda name: named[name](asks), end_round)
    progress("")
    return dict(zip(named, rounds, strict=True)), _best(rates)


def _contenders(llm: LLM) -> dict[str, Contender]:
    found: dict[str, Contender] = {} if llm.config.k == 0 else {PLAIN: contenders.plain(llm)}
    if llm.device.type == "cpu":
        return found | {SERVED: contenders.as_they_come(llm), SERVED_SEEN: contenders.spanned(llm)}
    found |= {SERVED: contenders.graphs(llm), SERVED_SEEN: contenders.traced(llm, eager=False)}
    if llm.ranks is not None:
        return found
    return found | {
        EAGER: contenders.as_they_come(llm),
        EAGER_SEEN: contenders.traced(llm, eager=True),
    }


def _why_one_way(llm: LLM) -> str:
    if llm.device.type == "cuda":
        return "ranks replay the same graphs: they are not run without them, so there is no launch cost to compare"
    return f"{llm.device} has no graphs: cycles run operation by operation, and there is no launch cost to compare"


def _ways(seen: Mapping[str, Sequence[Seen]], *, on_cpu: bool) -> list[Way]:
    """As it serves, and where graphs can be left out, without them."""
    served = _way("eager" if on_cpu else "graph", seen[SERVED], seen[SERVED_SEEN], on_cpu=on_cpu)
    return [served, *([_way("eager", seen[EAGER], seen[EAGER_SEEN], on_cpu=False)] if EAGER in seen else [])]


def _way(how: How, seen: Sequence[Seen], watched: Sequence[Seen], *, on_cpu: bool) -> Way:
    """One way, and what watching cost it: on a CPU in time of the process, which other processes do not lengthen.

    A part is its share of the watched run's phase, of the time that the phase takes unwatched.
    """

    def cost(run: Sequence[Seen]) -> list[float]:
        return [each.cpu_s if on_cpu else each.cycle_s for each in run]

    phases = _means([each.phases for each in seen])
    gaps = [each.gaps for each in (seen if seen[0].gaps is not None else watched)]
    time, count = _means([each.time for each in watched]), _means([each.count for each in watched])
    taken = _means([each.phases for each in watched])
    factor = {name: phases[name] / taken[name] if taken.get(name) else 1.0 for name in phases}
    parts = tuple(
        Part(
            phase=phase,
            name=name,
            ms=1e3 * factor.get(phase, 1.0) * time[phase, name],
            count=count.get((phase, name), 0.0),
        )
        for phase in (*PHASES, BETWEEN)
        for name in PARTS
        if (phase, name) in time
    )
    return way_of(
        how,
        _speed(seen),
        {name: 1e3 * seconds for name, seconds in phases.items()},
        1e3 * fmean(gap for gap in gaps if gap is not None),
        parts,
        _paired(cost(watched), cost(seen), less=1.0),
    )


def _speedup(seen: Mapping[str, Sequence[Seen]]) -> Paired | None:
    """Over plain decoding, within rounds."""
    if PLAIN not in seen:
        return None
    return _paired([each.tok_s for each in seen[SERVED]], [each.tok_s for each in seen[PLAIN]])


def _break_even(seen: Mapping[str, Sequence[Seen]]) -> float | None:
    """A cycle in plain steps, within rounds: a machine that is busy for one round is so for both."""
    if PLAIN not in seen:
        return None
    return paired_ratio([each.cycle_s for each in seen[SERVED]], [each.cycle_s for each in seen[PLAIN]]).value


def _paired(above: Sequence[float], below: Sequence[float], less: float = 0.0) -> Paired:
    ratio = paired_ratio(above, below)
    low, high = ratio.bounds or (None, None)
    return Paired(
        median=ratio.value - less,
        low=None if low is None else low - less,
        high=None if high is None else high - less,
    )


def _speed(seen: Sequence[Seen]) -> Speed:
    windows = [window for each in seen for window in each.windows]
    tokens, seconds = sum(each.tokens for each in windows), sum(each.seconds for each in windows)
    return Speed(
        tok_s=tokens / seconds,
        low=min(each.tok_s for each in seen),
        high=max(each.tok_s for each in seen),
        tokens=tokens,
        cycles=sum(each.cycles for each in windows),
        seconds=seconds,
    )


def _means(each: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    names = dict.fromkeys(name for one in each for name in one)
    return {name: fmean(one.get(name, 0.0) for one in each) for name in names}


def _acceptance(seen: Seen) -> list[tuple[int, int]]:
    """Drafts that stood, and drafts that were judged, place by place: those behind a refused one never were.

    Of one round: the others write the same answers once more.
    """
    windows = seen.windows
    accepted = [sum(counts) for counts in zip_longest(*(w.accepted_at for w in windows), fillvalue=0)]
    drafted = [sum(counts) for counts in zip_longest(*(w.drafted_at for w in windows), fillvalue=0)]
    judged = [min(before, own) for before, own in zip([*drafted[:1], *accepted], drafted, strict=False)]
    return list(zip(accepted, judged, strict=True))


def _best(rates: Sequence[Rates]) -> Rates:
    """A limit is the least that anything takes: on a busy machine each measurement falls short of the device."""
    return Rates(
        copy_bytes_s=max(each.copy_bytes_s for each in rates), matrix_flops_s=max(each.matrix_flops_s for each in rates)
    )


def _limits(llm: LLM, rates: Rates, context: int) -> tuple[dict[str, dict[str, float]], str | None]:
    if llm.ranks is not None:
        return {}, f"limits are of a model that lies on one device; this one is cut over {llm.ranks.group.size} ranks"
    wiring = None if llm.drafter is None else llm.drafter.wiring
    config, itemsize, packing = llm.target.config, llm.dtype.itemsize, llm.target.model.packing
    least = cycle_parts(config, wiring, itemsize, num_rows=1, k=llm.config.k, context=context, packing=packing)
    return {
        phase: {part: 1e3 * each.seconds(rates) for part, each in parts.items()} for phase, parts in least.items()
    }, None


def _notes(llm: LLM, served: Way) -> list[str]:
    notes = [] if llm.ranks is None else ["parts are those of rank 0; all-reduce is gathering, and waiting for others"]
    if llm.config.simulate_acceptance:
        notes.append("the weights are random: acceptance is simulated, and only times mean anything")
    for frame in llm.engine.runner.describe().get("eager", ()):
        notes.append(f"cycles of k {frame['k']} could not be captured, and ran without a graph: {frame['why']}")
    if llm.target.config.mixture is not None:
        notes.append("the experts' limit supposes that tokens choose experts evenly")
    if served.slowdown.low is not None and served.slowdown.low > 0.01:
        notes.append("watching cost more than 1%: parts are those of slower cycles than the phases beside them")
    if abs(served.unexplained_share) > 0.03:
        notes.append(f"more than 3% of the cycle is unexplained ({served.unexplained_share:+.1%})")
    if any(part.name == OTHER for part in served.parts):
        notes.append("some kernels have names that belong to no known part; they are listed under other")
    return notes
