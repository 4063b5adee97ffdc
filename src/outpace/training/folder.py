"""Where one run keeps its drafter and its checkpoints.

out/config.json, model*.safetensors   the drafter, as any engine loads it; written anew with every checkpoint
out/checkpoint/                       to resume from
out/answers/, out/metrics.jsonl       what `outpace train` adds: what the target wrote, and every log record
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter, save_drafter
from outpace.models.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The places of one run."""

    out: Path
    """Where the drafter goes."""
    checkpoints: Path | None = None
    """Where checkpoints go; None is `out/checkpoint`."""
    shard_bytes: int = 15 << 20
    """Largest weight file."""

    @property
    def checkpoint_folder(self) -> Path:
        return self.checkpoints or self.out / "checkpoint"

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoint_folder.glob("step-*"))

    def check(self, *, resume: bool) -> None:
        """Raises ConfigError if there is a checkpoint but `resume` was not asked for, or the other way round."""
        if self.has_checkpoint == resume:
            return
        remedy = (
            "has no checkpoint; leave --resume out" if resume else "holds a checkpoint; give --resume, or another --out"
        )
        raise ConfigError(f"{self.checkpoint_folder} {remedy}")

    def save(self, drafter: Drafter) -> None:
        save_drafter(drafter, self.out, shard_bytes=self.shard_bytes)

    def load(self, target: Target) -> Drafter:
        """The drafter from its files, in the target's dtype."""
        weight = target.embed.weight
        return load_drafter(str(self.out), target, dtype=weight.dtype, device=weight.device)
