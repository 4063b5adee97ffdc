"""The doctor for a model that runs here: is speculation paying, what costs it, and is its drafter wired as trained?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outpace import LLM, SamplingParams
from outpace.checks import check_integers
from outpace.engine.shipped import shipped_drafter
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.bench.asks import read_asks
from outpace.lab.demo.run import PROMPTS, middle
from outpace.lab.doctor import wiring
from outpace.lab.doctor.diagnosis import Diagnosis, diagnose
from outpace.lab.doctor.finding import Unknown
from outpace.lab.doctor.own_engine import ENGINE, case_of, time_both, warm_up
from outpace.lab.profile.clock import cycle_times
from outpace.lab.profile.contenders import phases_of
from outpace.lab.wirings.score import Scorer, read_texts
from outpace.lab.wirings.search import search
from outpace.models.drafters.checkpoint import load_drafter
from outpace.models.source import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What is run."""

    model: str
    drafter: str = "auto"
    """An EAGLE-3 drafter; auto is the one shipped for the model."""
    aux_boundaries: tuple[int, ...] | None = None
    k: int = 4
    dtype: str = "auto"
    device: str = "auto"
    workload: tuple[str, ...] = ()
    """As of `outpace bench`; none takes the demo's prompts."""
    num_prompts: int = 4
    max_tokens: int = 64
    num_rounds: int = 2

    def __post_init__(self) -> None:
        check_integers(
            self, ConfigError, {"k": (1, 15), "num_prompts": (1, 1000), "max_tokens": (8, 4096), "num_rounds": (1, 100)}
        )
        if not self.workload and self.num_prompts > len(PROMPTS):
            raise ConfigError(
                f"num_prompts is {self.num_prompts}; without a workload there are {len(PROMPTS)}; name one"
            )


def examine(asked: Examined, progress: Callable[[str], None] = lambda text: None) -> Diagnosis:
    """Loads, measures, judges.

    Raises:
        ConfigError: there is no drafter to judge.
        CheckpointError, RequestError: the model cannot be loaded or asked.
    """
    progress(f"loading {asked.model}")
    llm, facts = _load(asked), machine()
    prompts = [llm.encode(messages) for messages in _messages(asked)]
    params = SamplingParams(max_tokens=asked.max_tokens)
    plain = LLM.from_parts(llm.target, None, llm.config)
    progress("timing plain decoding and speculation in turns")
    warm_up((plain, llm), prompts[0], params)
    with cycle_times(llm) as times:
        without, with_drafts = time_both(plain, llm, prompts, params, asked.num_rounds)
    progress("taking the cycles apart")
    phases, _ = phases_of(llm, times, middle(prompts), params)
    case = case_of(llm, without, with_drafts, phases, asked.num_rounds)
    drafter = load_drafter(
        str(llm.drafter_name),
        llm.target.model,
        dtype=llm.dtype,
        device=llm.device,
        aux_boundaries=asked.aux_boundaries,
    )
    answers = [timing.token_ids for timing in without.timings[:: asked.num_rounds]]
    texts = read_texts(llm.target.model, list(zip(prompts, answers, strict=True)))
    found = search(Scorer(drafter, llm.target.model, texts), drafter, progress)
    progress("running the best wiring")
    finding, advice, _ = wiring.judge(llm, drafter, found, with_drafts, prompts, params)
    return diagnose(
        case,
        {},
        found=[finding],
        to_try=[replace(each, over_plain=each.tok_s / without.tok_s) for each in advice],
        not_known=_not_known(),
        machine=facts,
    )


def _load(asked: Examined) -> LLM:
    drafter = shipped_drafter(locate(asked.model).name) if asked.drafter == "auto" else asked.drafter
    if drafter in (None, "none"):
        raise ConfigError(f"{asked.model} runs without a drafter, so there is no speculation to judge; name --drafter")
    options: dict[str, Any] = {**ENGINE, "k": asked.k}
    return LLM(
        asked.model,
        drafter=drafter,
        dtype=asked.dtype,
        device=asked.device,
        aux_boundaries=asked.aux_boundaries,
        **options,
    )


def _messages(asked: Examined) -> list[list[dict[str, str]]]:
    if not asked.workload:
        return [[{"role": "user", "content": prompt}] for prompt in PROMPTS[: asked.num_prompts]]
    return [list(ask.messages) for ask in read_asks(asked.workload, asked.num_prompts)]


def _not_known() -> Sequence[Unknown]:
    return [
        Unknown(
            "how it is with several requests at a time", "outpace bench MODEL --concurrency 8, with --k 0 and without"
        ),
        Unknown("whether the drafter is weak because it was trained on other text", "--workload with your own prompts"),
    ]
