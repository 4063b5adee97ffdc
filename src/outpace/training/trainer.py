"""The training loop: a lesson, seven drafts from every position, a step; logged, saved and resumable.

One process, online: the target recomputes what it knows of each batch. Nothing in the loop waits for the device except
the log line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outpace.errors import ConfigError, EngineError
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.training.attention import Kernel, choose_kernel
from outpace.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from outpace.training.dataset import Batch, Dataset
from outpace.training.journal import Record
from outpace.training.loss import compare_chunk
from outpace.training.meter import Meter, summarize
from outpace.training.recipe import TrainConfig
from outpace.training.teacher import Teacher
from outpace.training.ttt import Tested, UnrollConfig, run_test
from outpace.training.weights import Weights

_ADAPTATION_MEMORY = 0.95
_MAY_CHANGE = ("steps", "epochs", "minutes", "chunk_rows", "compile", "log_every", "save_minutes")
"""Settings that a run may be resumed with others of: its length, and what touches no more than roundings."""


class Trainer:
    """Trains one drafter on one dataset.

    Args:
        target: frozen; lessons come from it.
        drafter: in the target's dtype and on its device; changed in place.
        training: batches to learn from.
        held_out: batches to be judged on, or None.
        config: the recipe.
        peak: highest learning rate.
        folder: checkpoints are kept here.
        log: called with every record (a log line, a validation).
        export: called before every checkpoint, while the drafter holds the running mean of the weights; not before the
            first step.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        training: Dataset,
        held_out: Dataset | None,
        config: TrainConfig,
        *,
        peak: float,
        folder: Path,
        log: Callable[[Record], None],
        export: Callable[[], None],
    ) -> None:
        self.drafter, self.training, self.held_out = drafter, training, held_out
        self.config, self.folder, self.log, self.export = config, folder, log, export
        self.device = target.embed.weight.device
        self.kernel: Kernel = choose_kernel(self.device, target.embed.weight.dtype, drafter.wiring.head_dim)
        self.teacher = Teacher(
            target,
            taps=drafter.wiring.aux_boundaries,
            target_ids_V=drafter.target_ids_V,
            num_steps=config.ttt_steps,
            chunk_rows=config.chunk_rows,
        )
        self.weights = Weights(drafter, config, peak)
        self.head_parameters = tuple(p for p in drafter.lm_head.parameters() if p.requires_grad)
        self.unroll_config = UnrollConfig(
            num_steps=config.ttt_steps,
            decay=config.decay,
            reach=config.reach,
            adaptation=config.adaptation,
            chunk_rows=config.chunk_rows,
            compare=torch.compile(compare_chunk, dynamic=True) if config.compile else compare_chunk,
        )
        self.progress = Progress()
        self.accepted_J = torch.zeros(config.ttt_steps, device=self.device)
        if config.compile:
            drafter.forward = torch.compile(drafter.forward, dynamic=True)  # type: ignore[method-assign]

    def resume(self) -> bool:
        """Takes up the latest checkpoint in the folder; says whether there was one.

        Raises:
            ConfigError: it cannot be read, or was made with other settings.
        """
        found = load_checkpoint(self.folder)
        if found is None:
            return False
        self.progress, tensors = found
        now = self._settings()
        for name, then in self.progress.settings.items():
            if now.get(name) != then:
                raise ConfigError(
                    f"{name} is {now.get(name)}, and the run in {self.folder} was begun with {then}: resume with the "
                    "settings of the first run (fine-tuning with its drafter), or train into an empty folder"
                )
        self.weights.restore(tensors, self.progress.step)
        self.accepted_J = torch.tensor(self.progress.accepted, device=self.device)
        return True

    def save(self) -> None:
        """Writes a checkpoint."""
        save_checkpoint(self.folder, self.progress, self.weights.state())

    def _settings(self) -> dict[str, Any]:
        chosen = {name: value for name, value in asdict(self.config).items() if name not in _MAY_CHANGE}
        return chosen | {"dtype": str(self.drafter.embed.weight.dtype).removeprefix("torch.")}

    def run(self, *, stop_after: float | None = None, asked_to_stop: Callable[[], bool] = lambda: False) -> Progress:
        """Trains to the end of the run, or for `stop_after` minutes of it, or until it is asked to stop, to be resumed.

        The drafter then holds the running mean of the weights.
        """
        meter = Meter(self.device, self.config.ttt_steps)
        saved = began = time.monotonic()
        before, kept = self.progress.seconds, -1
        for batches, after in self._steps():
            fraction = self.fraction()
            in_time = stop_after is None or time.monotonic() - began <= 60.0 * stop_after
            if fraction >= 1.0 or not in_time or asked_to_stop():
                break
            norm = self._step(batches, meter, self.config.rate_at(fraction))
            spent = before + time.monotonic() - began
            num_tokens = self.progress.num_tokens + sum(batch.num_tokens for batch in batches)
            self.progress = Progress(
                step=self.progress.step + 1, epoch=after[0], batch=after[1], seconds=spent, num_tokens=num_tokens
            )
            if self.progress.step % self.config.log_every == 0:
                self._report(meter, norm)
            if time.monotonic() - saved > 60 * self.config.save_minutes:
                self._keep()
                saved, kept = time.monotonic(), self.progress.step
        if kept != self.progress.step:
            self._keep(judge=not asked_to_stop())
        self.weights.put_means()
        return self.progress

    def fraction(self) -> float:
        """How far the run is, 0 … 1."""
        config, progress = self.config, self.progress
        if config.minutes is not None:
            return progress.seconds / (60.0 * config.minutes)
        return progress.step / self.total_steps()

    def total_steps(self) -> int:
        """Optimizer steps of a run that is not measured in minutes."""
        if self.config.steps is not None:
            return self.config.steps
        assert self.config.epochs is not None
        return max(1, round(self.config.epochs * self.training.num_batches / self.config.accumulate))

    def _steps(self) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
        """Batches of each optimizer step, and the (epoch, batch) that comes after them."""
        epoch, start = self.progress.epoch, self.progress.batch
        taken: list[Batch] = []
        while True:
            for place, batch in enumerate(self.training.epoch(epoch, start=start), start=start + 1):
                taken.append(batch)
                if len(taken) == self.config.accumulate:
                    yield taken, (epoch, place)
                    taken = []
            epoch, start = epoch + 1, 0

    def _step(self, batches: list[Batch], meter: Meter, rate: float) -> Tensor:
        for batch in batches:
            tested = self._test(batch)
            (tested.loss / len(batches)).backward()
            self.weights.collect()
            meter.add(tested, batch.num_tokens)
            fresh = tested.sum_accepted / tested.num_judged.clamp(min=1)
            keep = _ADAPTATION_MEMORY if self.progress.step else 0.0
            self.accepted_J = torch.lerp(fresh, self.accepted_J, keep)
        return self.weights.step(rate)

    def _test(self, batch: Batch) -> Tested:
        lesson = self.teacher.teach(batch)
        return run_test(self.drafter, self.head_parameters, lesson, self.unroll_config, self.kernel, self.accepted_J)

    def _report(self, meter: Meter, norm: Tensor) -> None:
        record = meter.read()
        if not record["loss"] == record["loss"]:
            raise EngineError(
                f"the loss is not a number at step {self.progress.step}; lower learning_rate "
                f"(it was {self.weights.peak:.2g}) and resume from the checkpoint before"
            )
        progress, fraction = self.progress, self.fraction()
        self.log(
            {
                "event": "step",
                "step": progress.step,
                "epoch": progress.epoch,
                "rate": self.weights.peak * self.config.rate_at(fraction),
                "gradient": float(norm),
                **record,
                "seconds": progress.seconds,
                "tokens": progress.num_tokens,
                "left_seconds": progress.seconds * (1.0 - fraction) / fraction if fraction else None,
            }
        )

    def _keep(self, *, judge: bool = True) -> None:
        """An export, a checkpoint, and what the mean weights come to on the held-out batches.

        Nothing is exported that has not learned, and a checkpoint comes after the drafter that it is resumed with.
        """
        self.progress = replace(self.progress, accepted=tuple(self.accepted_J.tolist()), settings=self._settings())
        self.weights.put_means()
        if self.progress.step:
            self.export()
        self.save()
        if judge and self.held_out is not None:
            self.log({"event": "held out", "step": self.progress.step, **self._judge(self.held_out)})
        self.weights.put_masters()

    @torch.no_grad()
    def _judge(self, dataset: Dataset) -> Record:
        """The working copy on all batches of a dataset, teacher forced."""
        return summarize([self._test(batch) for batch in dataset.epoch(0)])
