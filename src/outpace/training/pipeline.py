"""From a target and answers to a drafter directory: the steps that `outpace train` and the scripts share."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from outpace import __version__
from outpace.errors import ConfigError, DrafterError
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter
from outpace.models.registry import LoadedTarget
from outpace.training.conversations import Conversation
from outpace.training.dataset import Dataset, split
from outpace.training.folder import RunFolder
from outpace.training.initialise import start_from_target
from outpace.training.interrupt import Interrupt
from outpace.training.journal import Record
from outpace.training.recipe import TrainConfig, peak_rate
from outpace.training.trainer import Trainer
from outpace.training.validate import ValidateConfig, validate
from outpace.training.vocabulary import choose_vocabulary, count_tokens

Log = Callable[[Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A drafter ready to be trained, and what was decided for it."""

    drafter: Drafter
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
        if drafter.wiring.shape.latent is not None:
            raise DrafterError(
                f"drafter {init_from} has latent attention, which is not trained here; leave init_from out"
            )
        return Prepared(drafter=_trainable(drafter), coverage=None)
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
    return Prepared(drafter=_trainable(drafter), coverage=chosen.coverage)


def _trainable(drafter: Drafter) -> Drafter:
    """Everything but the embeddings learns, as in EAGLE-3."""
    drafter.requires_grad_(True)
    drafter.embed.requires_grad_(False)
    return drafter


def train_drafter(
    target: LoadedTarget,
    conversations: Sequence[Conversation],
    config: TrainConfig,
    folder: RunFolder,
    log: Log,
    *,
    init_from: str | None = None,
    resume: bool = False,
    validation: ValidateConfig | None = None,
    stop_after: float | None = None,
    interrupt: Interrupt | None = None,
) -> Record:
    """Trains a drafter and writes it to `folder`; returns the summary that was logged last.

    Args:
        target: frozen.
        conversations: what to learn from; some are held out.
        config: the recipe.
        folder: where the drafter and the checkpoints go.
        log: gets every record.
        init_from: a drafter to fine-tune.
        resume: go on from the checkpoint.
        validation: measure accept length by real drafting, before (when fine-tuning) and after.
        stop_after: minutes after which this call ends, though the run has not; resume it then.
        interrupt: ends this call after a step, with a checkpoint and the drafter as it is, unmeasured; resume it then.

    Raises:
        ConfigError: there is a checkpoint but `resume` was not asked for, or the other way round; or the target is in
            float16, in which gradients vanish.
    """
    if target.model.embed.weight.dtype == torch.float16:
        raise ConfigError("the target's dtype is float16, in which gradients vanish; train in bfloat16 or float32")
    folder.check(resume=resume)
    origin = str(folder.out) if folder.has_drafter and init_from is None else init_from
    prepared = prepare_drafter(target, conversations, config, origin)
    rows, held_out = split(conversations, num_held_out=config.num_held_out, seed=config.seed)
    peak = peak_rate(config, prepared.drafter.wiring.hidden_size, fine_tuning=init_from is not None)
    trainer = _trainer(target, prepared.drafter, (rows, held_out), replace(config, learning_rate=peak), folder, log)
    log(_start_record(trainer, prepared, len(conversations), init_from))
    before = None
    if resume:
        trainer.resume()
    elif init_from is not None and (before := _validated(target, init_from, held_out, validation)) is not None:
        log({"event": "before", "accept_length": before})
    if interrupt is None:
        trainer.run(stop_after=stop_after)
    else:
        with interrupt:
            trainer.run(stop_after=stop_after, asked_to_stop=lambda: interrupt.asked)
    asked_to_stop = interrupt is not None and interrupt.asked
    learned = trainer.progress.step > 0 and not asked_to_stop
    after = _validated(target, str(folder.out), held_out, validation) if learned else None
    summary = _summary(trainer, folder) | {"accept_length_before": before, "accept_length": after}
    log(summary)
    return summary


def _trainer(
    target: LoadedTarget,
    drafter: Drafter,
    parts: tuple[Sequence[Conversation], Sequence[Conversation]],
    config: TrainConfig,
    folder: RunFolder,
    log: Log,
) -> Trainer:
    """`parts` are what is learned and what is held out; the config's learning rate is the peak."""
    assert config.learning_rate is not None
    training, held_out = (_dataset(part, config) if part else None for part in parts)
    assert training is not None, "at most a tenth is held out"
    return Trainer(
        target.model,
        drafter,
        training,
        held_out,
        config,
        peak=config.learning_rate,
        folder=folder.checkpoint_folder,
        log=log,
        export=lambda: folder.save(drafter),
    )


def _dataset(conversations: Sequence[Conversation], config: TrainConfig) -> Dataset:
    return Dataset(conversations, batch_tokens=config.batch_tokens, max_length=config.max_length, seed=config.seed)


def _start_record(trainer: Trainer, prepared: Prepared, num_conversations: int, init_from: str | None) -> Record:
    drafter = prepared.drafter
    resolved = replace(
        trainer.config,
        draft_vocab_size=len(drafter.target_ids_V),
        intermediate_size=drafter.wiring.shape.intermediate_size,
    )
    return {
        "event": "start",
        "conversations": num_conversations,
        "assistant_tokens": trainer.training.num_assistant,
        "batches_per_epoch": trainer.training.num_batches,
        "parameters": sum(p.numel() for p in trainer.weights.masters.values()),
        "draft_vocab_size": len(drafter.target_ids_V),
        "coverage": prepared.coverage,
        "peak_rate": trainer.weights.peak,
        "attention": trainer.kernel.name,
        "init_from": init_from,
        "config": asdict(resolved),
        "machine": _machine(drafter.embed.weight),
        "drafter": drafter.wiring.describe(),
    }


def _machine(weight: torch.Tensor) -> Record:
    """What the run's speed and its last bits depend on."""
    on_gpu = weight.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(weight.device) if on_gpu else f"cpu, {platform.machine()}",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "outpace": __version__,
    }


def _summary(trainer: Trainer, folder: RunFolder) -> Record:
    progress = trainer.progress
    return {
        "event": "done",
        "finished": trainer.fraction() >= 1.0,
        "out": str(folder.out),
        "steps": progress.step,
        "epochs": progress.epoch + progress.batch / max(1, trainer.training.num_batches),
        "seconds": progress.seconds,
        "tokens": progress.num_tokens,
    }


def _validated(
    target: LoadedTarget, source: str, held_out: Sequence[Conversation], config: ValidateConfig | None
) -> list[Record] | None:
    """Loads a drafter, so that the files themselves are what is measured; None if nothing is to be."""
    prompts = [row.tokens[: row.spans[0][0]].tolist() for row in held_out]
    if config is None or not prompts:
        return None
    weight = target.model.embed.weight
    drafter = load_drafter(source, target.model, dtype=weight.dtype, device=weight.device)
    return [found.as_dict() for found in validate(target, drafter, prompts, config)]
