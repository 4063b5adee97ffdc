"""A profile: contenders in interleaved rounds, and one record that says how their figures add up."""

from __future__ import annotations

import random
import time
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
from outpace.lab.profile.contenders import Ask, Contender, Seen, means
from outpace.lab.profile.kineto import NUM_TRACED
from outpace.lab.profile.parts import OTHER
from outpace.lab.profile.record import ENOUGH, SCHEMA, Paired, ProfileRecord, Way, launch_ms
from outpace.lab.profile.ways import paired, speed, way
from outpace.lab.timing.rounds import interleave
from outpace.lab.written import about
from outpace.wording import count_of

ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False, "control": "fixed", "eager": False}
"""One request at a time, computed in full each time, k drafts in every cycle, as graphs where there are any."""
PLAIN, SERVED, SERVED_SEEN = "plain decoding", "serving", "serving, watched"
EAGER, EAGER_SEEN = "without graphs", "without graphs, watched"
QUICK = 0.95
"""Of its limit: what takes less did not read all of its bytes from memory."""
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
        EngineError: an answer was too short.
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
        plain=speed(seen[PLAIN]) if PLAIN in seen else None,
        speedup=_speedup(seen),
        break_even=_break_even(seen),
        acceptance_at=tuple(stood / tried if tried else 0.0 for stood, tried in stood_of_tried),
        judged_at=tuple(tried for _, tried in stood_of_tried),
        limits_ms=limits,
        why_no_limits=why_no_limits,
        rates=rates.as_dict(),
        seen_by=SEEN_BY_SPANS if llm.device.type == "cpu" else SEEN_BY_TRACE,
        unknown=means([each.unknown for each in seen[SERVED_SEEN]], 1e3),
        notes=(*_unseen(seen), *_notes(llm, ways[0], limits)),
        settings=llm.describe(),
        machine=facts,
    )


def _measured(
    llm: LLM, asks: Sequence[Ask], num_rounds: int, progress: Callable[[str], None]
) -> tuple[dict[str, list[Seen]], Rates]:
    """What was seen of each contender, round by round, and the device's best rates meanwhile."""
    rates, named = [measure_rates(llm.device)], _contenders(llm)
    for name, measure in named.items():
        progress(f"warming up {name}")
        measure(asks[:1] if llm.device.type == "cpu" else asks)  # every length: without graphs some compile kernels
    began, where = time.monotonic(), f"round 1 of {num_rounds}"

    def measured(name: str) -> Seen:
        progress(f"{where}: {name}")
        return named[name](asks)

    def end_round(done: int) -> None:
        nonlocal where
        rates.append(measure_rates(llm.device))
        left_s = (num_rounds - done) * (time.monotonic() - began) / done
        where = f"round {done + 1} of {num_rounds}, {about(left_s)} left"

    rounds = interleave(list(named), num_rounds, measured, end_round)
    seen = dict(zip(named, rounds, strict=True))
    for name, trace in _traces(llm).items():
        progress(f"tracing {count_of(NUM_TRACED, 'cycle')} of each answer ({name})")
        seen[name] = [trace(asks)]
    progress("")
    return seen, _best(rates)


def _contenders(llm: LLM) -> dict[str, Contender]:
    """What is measured in every round."""
    found: dict[str, Contender] = {} if llm.config.k == 0 else {PLAIN: contenders.plain(llm)}
    if llm.device.type == "cpu":
        return found | {SERVED: contenders.as_they_come(llm), SERVED_SEEN: contenders.spanned(llm)}
    found |= {SERVED: contenders.graphs(llm)}
    return found if llm.ranks is not None else found | {EAGER: contenders.as_they_come(llm)}


def _traces(llm: LLM) -> dict[str, Contender]:
    """What comes once, when all rounds are over: a profiler that was there may cost what runs after it something."""
    if llm.device.type == "cpu":
        return {}
    found = {SERVED_SEEN: contenders.traced(llm, eager=False)}
    return found if llm.ranks is not None else found | {EAGER_SEEN: contenders.traced(llm, eager=True)}


def _why_one_way(llm: LLM) -> str:
    if llm.device.type == "cuda":
        return "ranks replay the same graphs: they are not run without them, so there is no launch cost to compare"
    return f"{llm.device} has no graphs: cycles run operation by operation, and there is no launch cost to compare"


def _ways(seen: Mapping[str, Sequence[Seen]], *, on_cpu: bool) -> list[Way]:
    """As it serves, and where graphs can be left out, without them."""
    served = way("eager" if on_cpu else "graph", seen[SERVED], seen[SERVED_SEEN], on_cpu=on_cpu)
    return [served, *([way("eager", seen[EAGER], seen[EAGER_SEEN], on_cpu=False)] if EAGER in seen else [])]


def _speedup(seen: Mapping[str, Sequence[Seen]]) -> Paired | None:
    """Over plain decoding, within rounds."""
    if PLAIN not in seen:
        return None
    return paired([each.tok_s for each in seen[SERVED]], [each.tok_s for each in seen[PLAIN]])


def _break_even(seen: Mapping[str, Sequence[Seen]]) -> float | None:
    """A cycle in plain steps, within rounds: a machine that is busy for one round is so for both."""
    if PLAIN not in seen:
        return None
    return paired([each.cycle_s for each in seen[SERVED]], [each.cycle_s for each in seen[PLAIN]]).median


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


def _unseen(seen: Mapping[str, Sequence[Seen]]) -> list[str]:
    """Each reason once."""
    reasons = dict.fromkeys(each.why_no_parts for rounds in seen.values() for each in rounds)
    return [f"parts are missing, and gaps that only a trace shows: {why}" for why in reasons if why is not None]


def _notes(llm: LLM, served: Way, limits: Mapping[str, Mapping[str, float]]) -> list[str]:
    notes = [] if llm.ranks is None else ["parts are those of rank 0; all-reduce is gathering, and waiting for others"]
    if llm.config.simulate_acceptance:
        notes.append("the weights are random: acceptance is simulated, and only times mean anything")
    for frame in llm.engine.runner.describe().get("eager", ()):
        notes.append(f"cycles of k {frame['k']} could not be captured, and ran without a graph: {frame['why']}")
    if llm.target.config.mixture is not None:
        notes.append("the experts' limit supposes that tokens choose experts evenly")
    if served.timing is None and _beyond(served.slowdown):  # else the trace is a run of its own, with no interval
        notes.append("watching cost more than 1%: parts are those of slower cycles than the phases beside them")
    if served.timing is not None and _beyond(served.timing):
        notes.append("timing phases cost more than 1%: they are those of slower cycles than the cycle above them")
    if not served.adds_up:
        notes.append(f"more than {ENOUGH:.0%} of the cycle is unexplained ({served.unexplained_share:+.1%})")
    if any(part.name == OTHER for part in served.parts):
        notes.append("some kernels have names that belong to no known part; they are listed under other")
    least = {(phase, name): ms for phase, parts in limits.items() for name, ms in parts.items()}
    quick = [part for part in served.parts if part.ms < QUICK * least.get((part.phase, part.name), 0.0)]
    if quick:
        named = ", ".join(f"{part.name} of {part.phase}" for part in quick)
        notes.append(f"quicker than from memory, whose rate limits are of, as if a cache held some of it: {named}")
    return notes


def _beyond(cost: Paired) -> bool:
    """Surely above 1%."""
    return cost.low is not None and cost.low > 0.01
