"""From a target and prompts to a drafter directory: the steps that `outpace train` and the scripts share.

out/config.json, model*.safetensors   the drafter, as any engine loads it
out/answers/                          what the target wrote, as token ids
out/checkpoint/                       to resume from
out/metrics.jsonl                     every log record
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outpace.config import EngineConfig
from outpace.engine.llm import LLM
from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.models.drafter_checkpoint import load_drafter, save_drafter
from outpace.models.registry import LoadedTarget
from outpace.training.answers import AnswerConfig, AnswerStats, answer, invent_prompts
from outpace.training.conversations import Conversation
from outpace.training.dataset import Dataset, split
from outpace.training.initialise import start_from_target
from outpace.training.journal import Record
from outpace.training.prompts import Prompt
from outpace.training.recipe import TrainConfig, peak_rate
from outpace.training.store import AnswerStore
from outpace.training.trainer import Trainer
from outpace.training.validate import ValidateConfig, validate
from outpace.training.vocabulary import choose_vocabulary, count_tokens

Log = Callable[[Record], None]


def answering_engine(target: LoadedTarget, config: AnswerConfig, *, max_rows: int) -> LLM:
    """An engine made for throughput: many rows, long prefill chunks, no drafter."""
    context = min(target.config.max_positions, config.max_prompt + config.max_tokens)
    engine = EngineConfig(
        k=0, max_rows=max_rows, max_context=context, prefill_chunk=max(4096, 32 * max_rows), prefix_reuse=False
    )
    return LLM.from_parts(target, None, engine)


def write_answers(
    llm: LLM,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    config: AnswerConfig,
    log: Log,
    *,
    num_invented: int = 0,
    minutes: float | None = None,
    max_files: int | None = None,
) -> AnswerStats:
    """Answers the prompts that the store lacks.

    Args:
        llm: from `answering_engine`.
        prompts: in order; those a former run answered are skipped.
        store: where answers go, wave by wave.
        config: how they are written.
        log: gets one record a wave.
        num_invented: prompts that the target writes itself, answered first (only in a run that starts afresh).
        minutes: stop beginning waves then.
        max_files: stop once the store has this many full files.
    """
    deadline = None if minutes is None else time.monotonic() + 60.0 * minutes
    stats = AnswerStats()
    if num_invented and not store.num_prompts_done:
        invented = invent_prompts(llm, num_invented, wave=config.wave, seed=config.seed, deadline=deadline)
        log({"event": "invented", "prompts": len(invented), "of": num_invented})
        for wave in answer(llm, invented, config, stats, deadline=deadline):
            store.add(wave.conversations, num_prompts=0)
            log({"event": "answers", **_told(stats)})
    left = prompts[store.num_prompts_done :]
    for wave in answer(
        llm, left, replace(config, seed=config.seed + store.num_prompts_done + 1), stats, deadline=deadline
    ):
        store.add(wave.conversations, num_prompts=wave.num_prompts)
        log({"event": "answers", **_told(stats)})
        if max_files is not None and store.num_files > max_files:
            break
    return stats


def _told(stats: AnswerStats) -> Record:
    rate = stats.tokens / stats.seconds if stats.seconds else 0.0
    fields = ("answers", "tokens", "greedy", "ended", "looped", "skipped", "seconds")
    return {name: getattr(stats, name) for name in fields} | {"tokens_per_second": rate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A drafter ready to be trained, and what was decided for it."""

    drafter: Drafter
    fine_tuning: bool
    coverage: float | None
    """Share of the answers' tokens in the draft vocabulary; None if the drafter came with its own."""


def prepare_drafter(
    target: LoadedTarget, conversations: Sequence[Conversation], config: TrainConfig, init_from: str | None
) -> Prepared:
    """A drafter in the target's dtype: `init_from`, of any dialect, its vocabulary kept; or a fresh one.

    Raises:
        DrafterError: `init_from` does not fit the target.
        ConfigError: no vocabulary can be chosen.
    """
    weight = target.model.embed.weight
    if init_from is not None:
        drafter = load_drafter(init_from, target.model, dtype=weight.dtype, device=weight.device)
        return Prepared(drafter=_trainable(drafter), fine_tuning=True, coverage=None)
    chosen = choose_vocabulary(
        count_tokens(conversations, target.config.vocab_size),
        size=config.draft_vocab_size,
        coverage=config.coverage,
        max_size=config.max_draft_vocab_size,
        always=target.config.eos_token_ids,
    )
    torch.manual_seed(config.seed)
    options: dict[str, Any] = {}
    if config.intermediate_size is not None:
        options["intermediate_size"] = config.intermediate_size
    drafter = Drafter.create(target.model, draft_ids=chosen.target_ids_V, **options)
    start_from_target(drafter, target.model)
    return Prepared(drafter=_trainable(drafter), fine_tuning=False, coverage=chosen.coverage)


def _trainable(drafter: Drafter) -> Drafter:
    """Everything but the embeddings learns, as in EAGLE-3."""
    drafter.requires_grad_(True)
    drafter.embed.requires_grad_(False)
    return drafter


def train_drafter(
    target: LoadedTarget,
    conversations: Sequence[Conversation],
    config: TrainConfig,
    out: Path,
    log: Log,
    *,
    init_from: str | None = None,
    resume: bool = False,
    validation: ValidateConfig | None = None,
    checkpoints: Path | None = None,
    stop_after: float | None = None,
    shard_bytes: int = 15 << 20,
) -> Record:
    """Trains a drafter and writes it to `out`; returns the summary that was logged last.

    Args:
        target: frozen.
        conversations: what to learn from; some are held out.
        config: the recipe.
        out: see the module's docstring.
        log: gets every record.
        init_from: a drafter to fine-tune.
        resume: go on from the checkpoint.
        validation: measure accept length by real drafting, before (when fine-tuning) and after.
        checkpoints: folder of the checkpoints; None is `out/checkpoint`.
        stop_after: minutes after which this call ends, though the run has not; resume it then.
        shard_bytes: largest weight file.

    Raises:
        ConfigError: there is a checkpoint but `resume` was not asked for, or the other way round; or the target is in
            float16, in which gradients vanish.
    """
    if target.model.embed.weight.dtype == torch.float16:
        raise ConfigError("the target's dtype is float16, in which gradients vanish; train in bfloat16 or float32")
    checkpoints = checkpoints or out / "checkpoint"
    if any(checkpoints.glob("step-*")) != resume:
        wanted = (
            "has no checkpoint; leave --resume out" if resume else "holds a checkpoint; give --resume, or another --out"
        )
        raise ConfigError(f"{checkpoints} {wanted}")
    prepared = prepare_drafter(target, conversations, config, str(out) if resume and init_from is None else init_from)
    drafter = prepared.drafter
    rows, held_out = split(conversations, num_held_out=config.num_held_out, seed=config.seed)
    trainer = Trainer(
        target.model,
        drafter,
        _dataset(rows, config),
        _dataset(held_out, config) if held_out else None,
        config,
        peak=peak_rate(config, drafter.wiring.hidden_size, fine_tuning=init_from is not None),
        folder=checkpoints,
        log=log,
        export=lambda: save_drafter(drafter, out, shard_bytes=shard_bytes),
    )
    log(_start_record(trainer, prepared, conversations))
    before = None
    prompts = [row.tokens[: row.spans[0][0]].tolist() for row in held_out]
    if resume:
        trainer.resume()
    else:
        save_drafter(drafter, out, shard_bytes=shard_bytes)
        if init_from is not None and validation is not None and prompts:
            before = _validated(target, out, prompts, validation)
            log({"event": "before", "accept_length": before})
    progress = trainer.run(stop_after=stop_after)
    after = _validated(target, out, prompts, validation) if validation is not None and prompts else None
    summary = {
        "event": "done",
        "finished": trainer.fraction() >= 1.0,
        "out": str(out),
        "steps": progress.step,
        "epochs": progress.epoch + progress.batch / max(1, trainer.training.num_batches),
        "seconds": progress.seconds,
        "tokens": progress.num_tokens,
        "accept_length_before": before,
        "accept_length": after,
    }
    log(summary)
    return summary


def _dataset(conversations: Sequence[Conversation], config: TrainConfig) -> Dataset:
    return Dataset(conversations, batch_tokens=config.batch_tokens, max_length=config.max_length, seed=config.seed)


def _start_record(trainer: Trainer, prepared: Prepared, conversations: Sequence[Conversation]) -> Record:
    return {
        "event": "start",
        "conversations": len(conversations),
        "assistant_tokens": trainer.training.num_assistant,
        "batches_per_epoch": trainer.training.num_batches,
        "parameters": sum(p.numel() for p in trainer.weights.masters.values()),
        "draft_vocab_size": len(prepared.drafter.target_ids_V),
        "coverage": prepared.coverage,
        "peak_rate": trainer.weights.peak,
        "attention": type(trainer.kernel).__name__,
        "drafter": prepared.drafter.wiring.describe(),
    }


def _validated(
    target: LoadedTarget, out: Path, prompts: Sequence[Sequence[int]], config: ValidateConfig
) -> list[Record]:
    """Loads what was written, so that the files themselves are what is measured."""
    weight = target.model.embed.weight
    drafter = load_drafter(str(out), target.model, dtype=weight.dtype, device=weight.device)
    return [found.as_dict() for found in validate(target, drafter, prompts, config)]
