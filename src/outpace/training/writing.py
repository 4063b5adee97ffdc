"""Answers into a store: the prompts of a file first, then prompts that the target makes up itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outpace.config import EngineConfig
from outpace.engine.llm import LLM
from outpace.models.registry import LoadedTarget
from outpace.training.answers import AnswerConfig, AnswerStats, answer, invent_prompts
from outpace.training.journal import Record
from outpace.training.prompts import Prompt
from outpace.training.store import AnswerStore


def answering_engine(target: LoadedTarget, config: AnswerConfig, *, max_rows: int) -> LLM:
    """An engine made for throughput: many rows, long prefill chunks, no drafter."""
    context = min(target.config.max_positions, config.max_prompt + config.max_tokens)
    engine = EngineConfig(
        k=0, max_rows=max_rows, max_context=context, prefill_chunk=max(4096, 32 * max_rows), prefix_reuse=False
    )
    return LLM.from_parts(target, None, engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """When to stop, before all is answered."""

    minutes: float | None = None
    """No wave begins after so many."""
    max_files: int | None = None
    """Stop once the store has this many full files."""


def write_answers(
    llm: LLM,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    config: AnswerConfig,
    log: Callable[[Record], None],
    *,
    num_invented: int = 0,
    quota: Quota | None = None,
    progress: bool = False,
) -> AnswerStats:
    """Answers the prompts that the store lacks.

    Args:
        llm: from `answering_engine`.
        prompts: in order; those a former run answered are skipped.
        store: where answers go, wave by wave.
        config: how they are written.
        log: gets one record a wave.
        num_invented: prompts that the target is asked to make up, once all of `prompts` are answered; not if the store
            holds answers to such prompts already.
        quota: when to stop; None answers all.
        progress: show on stderr how far a wave is, which may take hours on a CPU.

    Raises:
        ConfigError: the store was begun with other prompts.
    """
    run = _Run(llm, store, log, quota or Quota(), progress)
    left = store.left(prompts)
    finished = run.answer(left, replace(config, seed=config.seed + store.num_prompts_done + 1), invented=False)
    if finished and num_invented and not store.num_invented:
        invented = invent_prompts(llm, num_invented, wave=config.wave, seed=config.seed, deadline=run.deadline)
        log({"event": "invented", "prompts": len(invented), "of": num_invented})
        run.answer(invented, config, invented=True)
    return run.stats


@dataclass(slots=True)
class _Run:
    """What both kinds of prompts share."""

    llm: LLM
    store: AnswerStore
    log: Callable[[Record], None]
    quota: Quota
    progress: bool
    deadline: float | None = field(init=False)
    stats: AnswerStats = field(default_factory=AnswerStats)

    def __post_init__(self) -> None:
        minutes = self.quota.minutes
        self.deadline = None if minutes is None else time.monotonic() + 60.0 * minutes

    def answer(self, prompts: Sequence[Prompt], config: AnswerConfig, *, invented: bool) -> bool:
        """Answers prompts wave by wave; says whether all of them were taken and there is room for more."""
        num_taken = 0
        for wave in answer(self.llm, prompts, config, self.stats, deadline=self.deadline, progress=self.progress):
            taken = prompts[num_taken : num_taken + wave.num_prompts]
            num_taken += len(taken)
            if invented:
                self.store.add(wave.conversations, num_invented=len(taken))
            else:
                self.store.add(wave.conversations, prompts=taken)
            self.log({"event": "answers", **_told(self.stats)})
            if self.quota.max_files is not None and self.store.num_files > self.quota.max_files:
                return False
        return num_taken == len(prompts)


def _told(stats: AnswerStats) -> Record:
    rate = stats.tokens / stats.seconds if stats.seconds else 0.0
    fields = ("answers", "tokens", "greedy", "ended", "looped", "skipped", "seconds")
    return {name: getattr(stats, name) for name in fields} | {"tokens_per_second": rate}
