"""How a drafter is trained, as data: the defaults are the recipe that the shipped drafter was made with.

Why these values: the learning rate falls with the width of the drafter (1.5e-3 at hidden size 576 is 2e-4 at 4096,
where public recipes sit); the mean of the weights over the last thousand steps drafts better than the last weights and
makes a run that is cut short usable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outpace.errors import ConfigError
from outpace.models.arch import MAX_VOCAB, MAX_WIDTH
from outpace.training.limits import MAX_RUN_SEED, check_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of one run. Exactly one of `steps`, `epochs`, `minutes` says how long it is.

    Raises:
        ConfigError: a value is out of its range.
    """

    steps: int | None = None
    """Optimizer steps."""
    epochs: float | None = None
    """Passes over the answers."""
    minutes: float | None = None
    """Minutes of the training loop; the learning rate ends with them."""
    batch_tokens: int = 16384
    """Places in one batch, padding included."""
    accumulate: int = 1
    """Batches in one optimizer step."""
    max_length: int = 2048
    """Tokens after which conversations are cut; at most `batch_tokens`."""
    learning_rate: float | None = None
    """Peak; None is 1.5e-3 · 576 / hidden size, a quarter of that when fine-tuning."""
    warmup: float = 0.03
    """Part of the run in which the learning rate rises."""
    final_rate: float = 0.02
    """Learning rate at the end, as part of the peak; it falls along a cosine."""
    weight_decay: float = 0.02
    """AdamW, on matrices only."""
    beta1: float = 0.9
    """AdamW's decay of the gradients' mean."""
    beta2: float = 0.95
    """AdamW's decay of their squares' mean."""
    clip: float = 1.0
    """Norm that gradients are cut to."""
    average: float = 0.999
    """Decay of the running mean of the weights, which is what is exported; 0 exports the last weights."""
    ttt_steps: int = 7
    """Drafts that are trained from every position (EAGLE-3 uses 7)."""
    decay: float = 0.8
    """Weight of each draft step relative to the one before (EAGLE-3 uses 0.8)."""
    reach: float = 0.5
    """How far a position's weight follows the chance that the drafts before it were accepted; 0 is not at all."""
    adaptation: float = 2.0
    """How fast the rejection rate takes over from cross-entropy as acceptance grows; 0 is cross-entropy alone."""
    chunk_rows: int = 4096
    """Positions whose logits exist at one time."""
    draft_vocab_size: int | None = None
    """Target ids the drafter can propose; None takes as many as `coverage` needs."""
    coverage: float = 0.985
    """Share of the answers' tokens that the draft vocabulary covers."""
    max_draft_vocab_size: int = 12288
    """Limit when `coverage` decides."""
    intermediate_size: int | None = None
    """Width of the drafter's MLP; None takes the target's."""
    compile: bool = False
    """Compile the drafter's forward and the loss (torch.compile): slower to start, faster on a GPU."""
    seed: int = 0
    """Of the first weights, of the order of batches and of what is held out."""
    num_held_out: int = 96
    """Conversations kept for validation, at most a tenth."""
    log_every: int = 20
    """Steps between log lines."""
    save_minutes: float = 2.0
    """Minutes between checkpoints."""

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.steps, self.epochs, self.minutes)) != 1:
            raise ConfigError(f"steps {self.steps}, epochs {self.epochs}, minutes {self.minutes}: give exactly one")
        check_limits(
            self,
            steps=(1, 1 << 31),
            epochs=(1e-9, 1e9),
            minutes=(1e-9, 1e9),
            batch_tokens=(16, 1 << 24),
            accumulate=(1, 1 << 16),
            max_length=(16, 1 << 20),
            learning_rate=(1e-9, 1.0),
            warmup=(0.0, 1.0),
            final_rate=(0.0, 1.0),
            weight_decay=(0.0, 10.0),
            beta1=(0.0, 0.999999),
            beta2=(0.0, 0.999999),
            clip=(1e-6, 1e6),
            average=(0.0, 0.999999),
            ttt_steps=(1, 15),
            decay=(0.0, 1.0),
            reach=(0.0, 1.0),
            adaptation=(0.0, 100.0),
            chunk_rows=(1, 1 << 24),
            draft_vocab_size=(1, MAX_VOCAB),
            coverage=(0.0, 1.0),
            max_draft_vocab_size=(1, MAX_VOCAB),
            intermediate_size=(1, MAX_WIDTH),
            seed=(0, MAX_RUN_SEED),
            num_held_out=(0, 1 << 30),
            log_every=(1, 1 << 30),
            save_minutes=(0.0, 1e9),
        )
        if self.max_length > self.batch_tokens:
            raise ConfigError(
                f"max_length is {self.max_length}, batch_tokens {self.batch_tokens}: a batch must hold the longest "
                "conversation; lower max_length or raise batch_tokens"
            )

    def rate_at(self, progress: float) -> float:
        """Learning rate as part of the peak, `progress` 0 … 1 through the run."""
        if progress < self.warmup:
            return max(progress, 1e-3) / self.warmup
        fraction = min(1.0, (progress - self.warmup) / max(1e-9, 1.0 - self.warmup))
        return self.final_rate + (1.0 - self.final_rate) * 0.5 * (1.0 + math.cos(math.pi * fraction))


def peak_rate(config: TrainConfig, hidden_size: int, *, fine_tuning: bool) -> float:
    """The learning rate that `config.learning_rate` None stands for."""
    if config.learning_rate is not None:
        return config.learning_rate
    return 1.5e-3 * 576 / hidden_size * (0.25 if fine_tuning else 1.0)
