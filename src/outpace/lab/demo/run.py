"""The demonstration: plain and speculative decoding of the same prompts in one run, and why one is faster.

Two passes. The first shows the answers, warms everything up and checks losslessness. The second times: every contender
answers every prompt, in mirrored order, and the engine's own clock takes the cycles apart. The speedup is over the
fastest plain decoding that this engine has on the machine, whatever number format that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from outpace import LLM, Chunk, SamplingParams
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.demo import reference
from outpace.lab.demo.lossless import Tape, Taped, Verdict, judge
from outpace.lab.demo.report import DemoReport, Measured
from outpace.lab.profile.clock import cycle_times
from outpace.lab.profile.contenders import phases_of
from outpace.lab.timing.answer import Timing, time_answer
from outpace.lab.timing.samples import Sample, mirrored

PROMPTS = (
    "What is gravity? Explain it to a ten-year-old.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a short e-mail to a colleague to move tomorrow's meeting to Friday.",
    "A shop sells pens at 3 dollars each. How much do 12 pens cost? Show your steps.",
)
"""Ordinary requests of four kinds, chosen before anything was measured on them."""

ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False, "control": "fixed"}
"""One request at a time, no prefix kept, k drafts in every cycle: every answer is computed in full, each time alike."""

PLAIN, SPECULATIVE, TRANSFORMERS = "plain", "speculative", "transformers"

Contender = Callable[[Sequence[int]], Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much is measured."""

    max_tokens: int = 64
    """Most tokens of an answer."""
    num_rounds: int = 2
    """Passes over the contenders; the second runs in mirrored order."""
    compare: bool = True
    """Also time the other plain number format, and transformers where it is installed."""


class Watcher(Protocol):
    """Told what happens while it happens. Time spent in it is not measured."""

    def begin(self, prompt: str) -> None: ...
    def chunk(self, who: str, chunk: Chunk) -> None: ...
    def end(self, who: str, timing: Timing) -> None: ...
    def progress(self, text: str) -> None: ...


def run_demo(llm: LLM, prompts: Sequence[str], settings: DemoSettings, watcher: Watcher) -> DemoReport:
    """Measures a model with its drafter against its own plain decoding.

    Args:
        llm: made with the settings in `ENGINE`.
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
    began = time.perf_counter()
    facts = machine()
    encoded = [llm.encode([{"role": "user", "content": prompt}]) for prompt in prompts]
    plain = LLM.from_parts(llm.target, None, llm.config)
    params = SamplingParams(max_tokens=settings.max_tokens)
    verdict, warm = _show(plain, llm, prompts, encoded, params, watcher)
    contenders = _contenders(plain, llm, params, settings, watcher)
    with cycle_times(llm) as times:
        timings = _time_all(contenders, warm, encoded, settings.num_rounds, watcher)
    phases, gap_s = phases_of(llm, times, middle(encoded), params)
    return DemoReport(
        model=llm.describe(),
        machine=facts,
        prompts=tuple(prompts),
        verdict=verdict,
        phases_s=phases,
        gap_s=gap_s,
        measured=tuple(_measured(name, runs) for name, runs in timings.items()),
        seconds=time.perf_counter() - began,
    )


def _show(
    plain: LLM,
    speculative: LLM,
    prompts: Sequence[str],
    encoded: Sequence[Sequence[int]],
    params: SamplingParams,
    watcher: Watcher,
) -> tuple[Verdict, frozenset[str]]:
    """The first pass: answers appear, and their logits are compared. Also names the contenders that it warmed up."""
    pairs: list[tuple[Taped, Taped]] = []
    tapes = {PLAIN: Tape(plain), SPECULATIVE: Tape(speculative)}
    for prompt, ids in zip(prompts, encoded, strict=True):
        watcher.begin(prompt)
        answers = []
        for who, tape in tapes.items():
            taped, timing = tape.record(ids, params, partial(watcher.chunk, who))
            watcher.end(who, timing)
            answers.append(taped)
        pairs.append((answers[0], answers[1]))
    verdict = judge(pairs, exact=str(plain.dtype) == "torch.float32")
    return verdict, frozenset({_contender(PLAIN, plain), _contender(SPECULATIVE, speculative)})


def middle(encoded: Sequence[Sequence[int]]) -> Sequence[int]:
    """The prompt in the middle by length, so that the context is typical."""
    return sorted(encoded, key=len)[len(encoded) // 2]


def _contenders(
    plain: LLM, speculative: LLM, params: SamplingParams, settings: DemoSettings, watcher: Watcher
) -> dict[str, Contender]:
    def of(llm: LLM) -> Contender:
        return lambda ids: time_answer(llm, ids, params)

    contenders = {_contender(PLAIN, plain): of(plain), _contender(SPECULATIVE, speculative): of(speculative)}
    if settings.compare and plain.device.type == "cpu":
        other = "bfloat16" if _dtype(plain) == "float32" else "float32"
        watcher.progress(f"loading the model in {other} too")
        second = _plain_in(plain.target.source.name, other, plain)
        contenders[_contender(PLAIN, second)] = of(second)
    if settings.compare and reference.available():
        watcher.progress("loading the model into transformers")
        theirs = reference.Reference(plain)
        contenders[_contender(TRANSFORMERS, plain)] = lambda ids: theirs.time_answer(ids, params.max_tokens)
    return contenders


def _plain_in(model: str, dtype: str, like: LLM) -> LLM:
    return LLM(model, drafter=None, dtype=dtype, device=str(like.device), max_context=like.config.max_context, **ENGINE)


def _time_all(
    contenders: dict[str, Contender],
    warm: Collection[str],
    encoded: Sequence[Sequence[int]],
    num_rounds: int,
    watcher: Watcher,
) -> dict[str, list[list[Timing]]]:
    """Timings of each contender, by prompt and round. Those that are not `warm` answer once, untimed, before."""
    names = list(contenders)
    timings: dict[str, list[list[Timing]]] = {name: [[] for _ in encoded] for name in names}
    for name in (name for name in names if name not in warm):
        watcher.progress(f"warming up {name}")
        contenders[name](encoded[0][:])
    for prompt, ids in enumerate(encoded):
        for index in mirrored(len(names), num_rounds):
            watcher.progress(f"timing prompt {prompt + 1} of {len(encoded)}: {names[index]}")
            timings[names[index]][prompt].append(contenders[names[index]](ids))
    watcher.progress("")
    return timings


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


def _contender(kind: str, llm: LLM) -> str:
    """What answers, and in which number format."""
    return f"{kind} {_dtype(llm)}"


def _dtype(llm: LLM) -> str:
    return str(llm.dtype).removeprefix("torch.")
