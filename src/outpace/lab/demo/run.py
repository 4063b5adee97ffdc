"""The demonstration: plain and speculative decoding of the same prompts in one run, and why one is faster.

Two passes. The first shows the answers, warms everything up and checks losslessness. The second times: every contender
answers every prompt once a round, in an order that turns around from prompt to prompt and from round to round, and the
engine's own clock takes the cycles apart. The speedup is over the fastest plain decoding that this engine has on the
machine, whatever number format that is.

A machine that is slow, or busy with something else, shows in the first pass already: then less is measured, and said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from outpace import LLM, Chunk, SamplingParams
from outpace.checks import check_integers, check_real
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.demo.contenders import PLAIN, SPECULATIVE, Contender, Loader, answering, extras, named
from outpace.lab.demo.lossless import Tape, Taped, Verdict, judge
from outpace.lab.demo.pace import Pace, Plan
from outpace.lab.demo.report import DemoReport, Measured
from outpace.lab.profile.clock import cycle_times
from outpace.lab.profile.contenders import phases_of
from outpace.lab.timing import others
from outpace.lab.timing.answer import Timing
from outpace.lab.timing.samples import Sample
from outpace.lab.written import about

PROMPTS = (
    "What is gravity? Explain it to a ten-year-old.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a short e-mail to a colleague to move tomorrow's meeting to Friday.",
    "A shop sells pens at 3 dollars each. How much do 12 pens cost? Show your steps.",
)
"""Ordinary requests of four kinds, chosen before anything was measured on them."""

WATCH_S = 0.3
"""What others do is watched for so long before anything is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much is measured."""

    max_tokens: int = 64
    """Most tokens of an answer."""
    num_rounds: int = 2
    """Passes over the contenders."""
    compare: bool = True
    """Also time the other plain number format, and transformers where it is installed."""
    time_limit: float = 300.0
    """Seconds for all of it: on a slow machine less is measured, one round at least."""

    def __post_init__(self) -> None:
        check_integers(self, ConfigError, {"max_tokens": (2, 1 << 16), "num_rounds": (1, 100)})
        check_real(self, ConfigError, "time_limit", 1.0, 86_400.0)


class Watcher(Protocol):
    """Told what happens while it happens. Time spent in it is not measured."""

    def begin(self, prompt: str, place: str) -> None: ...
    def chunk(self, who: str, chunk: Chunk) -> None: ...
    def end(self, who: str, timing: Timing) -> None: ...
    def progress(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...


def run_demo(llm: LLM, prompts: Sequence[str], settings: DemoSettings, watcher: Watcher) -> DemoReport:
    """Measures a model with its drafter against its own plain decoding.

    Args:
        llm: made with the settings in `contenders.ENGINE`.
        prompts: user messages.
        settings: how much to measure.
        watcher: told of every token of the first pass.

    Raises:
        ConfigError: there is no drafter, or k is 0: nothing to compare.
        RequestError: the model has no tokenizer or chat template.
    """
    if llm.drafter is None or llm.config.k == 0:
        raise ConfigError(
            f"{llm.target.source.name} runs without a drafter or with k 0, so there is no speculation to show; "
            "name an EAGLE-3 drafter with --drafter and a k of 1 or more"
        )
    pace, facts, before = Pace(settings.time_limit), machine(), others.read()
    encoded = [llm.encode([{"role": "user", "content": prompt}]) for prompt in prompts]
    _warn_if_crowded(watcher)
    plain = LLM.from_parts(llm.target, None, llm.config)
    loaders = extras(plain) if settings.compare else {}
    plan = Plan(
        pace=pace,
        pair=(named(PLAIN, plain), named(SPECULATIVE, llm)),
        extras=loaders.keys(),
        num_prompts=len(prompts),
        num_rounds=settings.num_rounds,
        warn=watcher.warn,
    )
    params = SamplingParams(max_tokens=settings.max_tokens)
    verdict, params = _show(plan, (plain, llm), prompts, encoded, params, watcher)
    with cycle_times(llm) as times:
        timings = _time_all(plan, (plain, llm), loaders, encoded, params, watcher)
    phases, gap_s = phases_of(llm, times, middle(encoded), params)
    return DemoReport(
        model=llm.describe(),
        machine=facts,
        prompts=tuple(prompts),
        verdict=verdict,
        phases_s=phases,
        gap_s=gap_s,
        measured=tuple(_measured(name, runs) for name, runs in timings.items()),
        seconds=pace.passed_s,
        left_out=tuple(plan.left_out),
        others=others.taken(before, others.read()),
    )


def _warn_if_crowded(watcher: Watcher) -> None:
    """Before anything is measured."""
    taken = others.taken_now(WATCH_S)
    if taken is not None and taken.crowded:
        watcher.warn(
            f"other programs keep {taken} busy: what is measured beside them is no measurement of this machine; end "
            "them, or come back later"
        )


def _show(
    plan: Plan,
    engines: tuple[LLM, LLM],
    prompts: Sequence[str],
    encoded: Sequence[Sequence[int]],
    params: SamplingParams,
    watcher: Watcher,
) -> tuple[Verdict, SamplingParams]:
    """The first pass: answers appear, and their logits are compared. Also how long answers may be from then on."""
    pairs: list[tuple[Taped, Taped]] = []
    contenders = [
        (who, name, Tape(llm)) for who, name, llm in zip((PLAIN, SPECULATIVE), plan.pair, engines, strict=True)
    ]
    for shown, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
        left = f", {about(plan.left_s(shown))} left" if shown else ""
        watcher.begin(prompt, f"{shown + 1} of {len(prompts)}{left}")
        answers = []
        for who, name, tape in contenders:
            taped, timing = tape.record(ids, params, partial(watcher.chunk, who))
            plan.pace.saw(name, timing.first_s + timing.decode_s)
            watcher.end(who, timing)
            answers.append(taped)
        pairs.append((answers[0], answers[1]))
        if not shown:
            params = _shortened(plan, params)
    return judge(pairs, exact=str(engines[0].dtype) == "torch.float32"), params


def _shortened(plan: Plan, params: SamplingParams) -> SamplingParams:
    """After the first prompt: answers short enough for the rest of the first pass and one round to fit."""
    least_s = plan.pace.takes(plan.pair, 2 * plan.num_prompts - 1)
    tokens = plan.pace.tokens_that_fit(params.max_tokens, least_s)
    if tokens < params.max_tokens:
        plan.pace.shorten(tokens / params.max_tokens)
        plan.leave_out(f"answers have {tokens} tokens instead of {params.max_tokens}")
    return replace(params, max_tokens=tokens)


def middle(encoded: Sequence[Sequence[int]]) -> Sequence[int]:
    """The prompt in the middle by length, so that the context is typical."""
    return sorted(encoded, key=len)[len(encoded) // 2]


def _time_all(
    plan: Plan,
    engines: tuple[LLM, LLM],
    loaders: Mapping[str, Loader],
    encoded: Sequence[Sequence[int]],
    params: SamplingParams,
    watcher: Watcher,
) -> dict[str, list[list[Timing]]]:
    """Timings of each contender, by prompt and round: as many rounds as there is time for, and one at least."""
    contenders = {name: answering(llm, params) for name, llm in zip(plan.pair, engines, strict=True)}
    for name, load in loaders.items():
        _join(plan, contenders, name, load, encoded, params, watcher)
    timings: dict[str, list[list[Timing]]] = {name: [[] for _ in encoded] for name in contenders}
    for turn in range(plan.num_rounds):
        if turn and not plan.pace.fits(plan.pace.takes(contenders, len(encoded))):
            plan.leave_out(f"{turn} of {plan.num_rounds} rounds were run")
            break
        for prompt, ids in enumerate(encoded):
            left_s = plan.pace.takes(contenders, len(encoded) * (plan.num_rounds - turn) - prompt)
            where = f"round {turn + 1} of {plan.num_rounds}, prompt {prompt + 1} of {len(encoded)}"
            for name in list(contenders)[:: -1 if (turn + prompt) % 2 else 1]:
                watcher.progress(f"timing {where}, {about(left_s)} left: {name}")
                timings[name][prompt].append(_clocked(plan.pace, name, contenders[name], ids))
    watcher.progress("")
    return timings


def _join(
    plan: Plan,
    contenders: dict[str, Contender],
    name: str,
    load: Loader,
    encoded: Sequence[Sequence[int]],
    params: SamplingParams,
    watcher: Watcher,
) -> None:
    """Adds a contender, and has it answer once, untimed, if one round with it fits."""
    num, pace = len(encoded), plan.pace
    fits = pace.fits(pace.takes((*contenders, name), num) + pace.expects(name))
    if fits:
        watcher.progress(f"loading and warming up {name}")
        loaded = load(params)
        _clocked(pace, name, loaded, encoded[0])
        fits = pace.fits(pace.takes((*contenders, name), num))
    if fits:
        contenders[name] = loaded
    else:
        plan.leave_out(f"{name} was not timed")


def _clocked(pace: Pace, name: str, contender: Contender, ids: Sequence[int]) -> Timing:
    began = pace.clock()
    timing = contender(ids)
    pace.saw(name, pace.clock() - began)
    return timing


def _measured(name: str, runs: Sequence[Sequence[Timing]]) -> Measured:
    kind, _, dtype = name.partition(" ")
    return Measured(
        kind=kind,
        dtype=dtype,
        samples=tuple(
            Sample(tokens=[t.num_decoded for t in rounds], seconds=[t.decode_s for t in rounds]) for rounds in runs
        ),
        cycles=tuple(rounds[0].cycles for rounds in runs),
    )
