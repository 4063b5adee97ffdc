"""Checkpoints of a run: tensors as safetensors, the rest as JSON; each written whole before the one before goes.

Nothing in them is executed when they are read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outpace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    batch: int = 0
    """Batches of the epoch that are done."""
    seconds: float = 0.0
    """Time spent in the loop."""
    num_tokens: int = 0
    """Tokens seen, padding not counted."""
    accepted: tuple[float, ...] = ()
    """Recent acceptance of each draft step, from which the loss is mixed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What decides what is learned, by name, as JSON has it."""


def save_checkpoint(folder: Path, progress: Progress, tensors: Mapping[str, Tensor]) -> Path:
    """Writes `folder/step-N` and removes earlier ones."""
    path = folder / f"step-{progress.step:08d}"
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / "tensors.safetensors")
    (partial / "progress.json").write_text(json.dumps(asdict(progress)))
    shutil.rmtree(path, ignore_errors=True)
    partial.replace(path)
    for other in folder.glob("step-*"):
        if other != path:
            shutil.rmtree(other)
    return path


def latest_step(folder: Path) -> int | None:
    """Steps done at the latest checkpoint in a folder; None if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=None)


def load_checkpoint(folder: Path) -> tuple[Progress, dict[str, Tensor]] | None:
    """The latest checkpoint in a folder; None if there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    paths = sorted(folder.glob("step-*"))
    if not paths:
        return None
    try:
        fields = json.loads((paths[-1] / "progress.json").read_text())
        progress = Progress(**{**fields, "accepted": tuple(fields["accepted"])})
        return progress, load_file(paths[-1] / "tensors.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(f"checkpoint {paths[-1]} cannot be read ({error}); remove it and start again") from error
