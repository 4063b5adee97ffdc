"""Accept length over the evaluation sets: how many tokens a cycle emits on prompts that nobody trained on.

Only tokens that reached the user count: the drafts cut off behind an end of text do not, nor does the first token of an
answer, which comes from prefill. Answers that fall into a loop are easy to guess, so each figure comes twice: over all
answers, and over those without a loop (see `loops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from outpace import LLM, RequestStats, Result, SamplingParams
from outpace.errors import ConfigError
from outpace.lab.workload.eval_sets import EvalPrompt
from outpace.lab.workload.loops import loops


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Accept length over some answers, tokens per cycle."""

    num_answers: int
    emitted: int
    cycles: int
    accept_length: float
    """All tokens ÷ all cycles: long answers weigh more."""
    mean_per_answer: float
    """Every answer weighs the same."""
    acceptance_by_position: tuple[float, ...]
    """Accepted ÷ drafted for the first draft of a cycle, the second, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReport:
    """One evaluation set under one way of sampling."""

    name: str
    temperature: float
    num_looped: int
    all_answers: Figures
    without_loops: Figures

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def measure_set(
    llm: LLM,
    prompts: Sequence[EvalPrompt],
    params: SamplingParams,
    *,
    second_turns: bool = False,
    progress: bool = True,
) -> SetReport:
    """Answers the prompts and sums up their cycles.

    Args:
        llm: an engine with a drafter.
        prompts: of one set.
        params: how to decode; with a seed, prompt i gets seed + i.
        second_turns: also ask the follow-ups, on top of the first answers, where the set has them.
        progress: a running count on stderr.

    Raises:
        ConfigError: the engine has no drafter, or there are no prompts.
        RequestError: the model has no tokenizer, or a prompt does not fit its context.
    """
    if llm.drafter is None or llm.config.k == 0:
        raise ConfigError(f"{llm.target.source.name} runs without a drafter or with k 0: there is nothing to accept")
    if not prompts:
        raise ConfigError("no evaluation prompts were given; take at least one of a set")
    conversations = [prompt.messages for prompt in prompts]
    results = _answer(llm, conversations, params, progress)
    if second_turns:
        results += _answer(llm, _continued(prompts, results), params, progress)
    return summarise(prompts[0].set, params.temperature, results)


def summarise(name: str, temperature: float, results: Sequence[Result]) -> SetReport:
    """Figures of a set's answers, with and without those that loop."""
    straight = [result for result in results if not loops(result.token_ids)]
    return SetReport(
        name=name,
        temperature=temperature,
        num_looped=len(results) - len(straight),
        all_answers=figures(results),
        without_loops=figures(straight),
    )


def figures(results: Sequence[Result]) -> Figures:
    """Sums over answers. Those that ended with their first token ran no cycle and are left out."""
    stats = [result.stats for result in results if result.stats.cycles]
    total = RequestStats.total(stats)
    return Figures(
        num_answers=len(stats),
        emitted=total.emitted,
        cycles=total.cycles,
        accept_length=total.accept_length,
        mean_per_answer=fmean(s.accept_length for s in stats) if stats else 0.0,
        acceptance_by_position=total.acceptance_by_position,
    )


def overall(reports: Sequence[SetReport], *, without_loops: bool = False) -> float:
    """Mean of the sets' accept lengths: every set weighs the same."""
    chosen = [report.without_loops if without_loops else report.all_answers for report in reports]
    lengths = [figure.accept_length for figure in chosen if figure.cycles]
    return fmean(lengths) if lengths else 0.0


def _answer(
    llm: LLM, conversations: Sequence[list[dict[str, str]]], params: SamplingParams, progress: bool
) -> list[Result]:
    encoded = [llm.encode(messages) for messages in conversations]
    return llm.generate(encoded, [_seeded(params, i) for i in range(len(encoded))], progress=progress)


def _seeded(params: SamplingParams, index: int) -> SamplingParams:
    """Every prompt has noise of its own, the same at every run."""
    return params if params.seed is None else replace(params, seed=params.seed + index)


def _continued(prompts: Sequence[EvalPrompt], results: Sequence[Result]) -> list[list[dict[str, str]]]:
    return [
        [
            *prompt.messages,
            {"role": "assistant", "content": result.text},
            {"role": "user", "content": prompt.followup},
        ]
        for prompt, result in zip(prompts, results, strict=True)
        if prompt.followup is not None
    ]
