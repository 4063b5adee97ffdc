"""Where one run keeps its drafter and its checkpoints.

out/config.json, model*.safetensors   the drafter, as any engine loads it; written anew with every checkpoint, and
                                      never before it has learned: what lies there is of use, whatever ended the run
out/checkpoint/                       to resume from
out/answers/, out/metrics.jsonl       what `outpace train` adds: what the target wrote, and every log record
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.training.checkpoint import latest_step


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
        return latest_step(self.checkpoint_folder) is not None

    @property
    def has_drafter(self) -> bool:
        """Whether the drafter in `out` is this run's: the first is written before the first checkpoint with a step."""
        return bool(latest_step(self.checkpoint_folder))

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
