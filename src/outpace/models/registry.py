"""From a source to a target that runs, whatever format it is stored in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outpace.models.arch import TargetConfig
from outpace.models.gguf import read_gguf
from outpace.models.hf_config import read_target
from outpace.models.source import Source
from outpace.models.target import Target
from outpace.models.tokenizer import Tokenizer
from outpace.models.weights import read_safetensors


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target with its weights, and its tokenizer if the checkpoint has one."""

    config: TargetConfig
    model: Target
    tokenizer: Tokenizer | None
    source: Source
    notes: tuple[str, ...] = ()
    """A sentence for each thing in the checkpoint that was not used."""


def load_target(source: Source, *, dtype: torch.dtype, device: torch.device | str) -> LoadedTarget:
    """Reads a checkpoint, converting its weights to `dtype` one tensor at a time. The model is not packed.

    Raises:
        CheckpointError: it cannot be read, is not served, or its tensors do not fit its configuration.
    """
    if source.kind == "gguf":
        checkpoint = read_gguf(source.path)
        model = Target(checkpoint.config, dtype=dtype, device=device)
        model.load(checkpoint.tensors)
        return LoadedTarget(config=checkpoint.config, model=model, tokenizer=checkpoint.tokenizer, source=source)
    config, notes = read_target(source.path)
    tensors = read_safetensors(source.path)
    model = Target(config, dtype=dtype, device=device)
    model.load(tensors)
    tokenizer = Tokenizer.from_directory(source.path)
    return LoadedTarget(config=config, model=model, tokenizer=tokenizer, source=source, notes=notes)
