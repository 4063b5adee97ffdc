"""From a source to a target that runs, whatever format it is stored in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outpace.config import Weights
from outpace.distributed.group import ALONE, Group
from outpace.errors import CheckpointError
from outpace.models.arch import TargetConfig
from outpace.models.gguf.checkpoint import read_gguf
from outpace.models.hf.config import read_target
from outpace.models.hf.wrapped import read_tensors
from outpace.models.packed import plan
from outpace.models.shares import check_target
from outpace.models.slots import PRODUCTS, expert_prefix
from outpace.models.source import Source
from outpace.models.target import Target
from outpace.models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A checkpoint before its weights are read."""

    config: TargetConfig
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]
    open_tensors: Callable[[], Mapping[str, Tensor]]
    """The weights by transformers' names, each read when it is asked for. Raises CheckpointError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target with its weights, and its tokenizer if the checkpoint has one."""

    config: TargetConfig
    model: Target
    tokenizer: Tokenizer | None
    source: Source
    notes: tuple[str, ...] = ()
    """Sentences: what ends an answer, and each thing in the checkpoint that was not used."""


def describe_target(source: Source) -> Described:
    """Reads everything but the weights.

    Raises:
        CheckpointError: it cannot be read or is not served.
    """
    if source.kind == "gguf":
        file = read_gguf(source.path)
        return Described(
            config=file.config, tokenizer=file.tokenizer, notes=file.notes, open_tensors=lambda: file.tensors
        )
    tokenizer = Tokenizer.from_directory(source.path)
    config, notes = read_target(source.path, tokenizer_eos=None if tokenizer is None else tokenizer.eos_token_id)
    notes += () if tokenizer is None else tokenizer.notes
    return Described(config=config, tokenizer=tokenizer, notes=notes, open_tensors=partial(read_tensors, source.path))


def load_target(
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    group: Group = ALONE,
    weights: Weights = "auto",
    taken: Callable[[], None] | None = None,
) -> LoadedTarget:
    """Reads a checkpoint, converting its weights to `dtype` one tensor at a time. The model is not packed.

    Args:
        source: where it lies.
        dtype, device: of the weights.
        group: ranks that share it; each reads its own part.
        weights: whether those that the checkpoint packs stay packed.
        taken: called after each tensor.

    Raises:
        CheckpointError: it cannot be read, is not served, its tensors do not fit its configuration, or there is no
            memory for it.
        ConfigError: the ranks cannot share it evenly, or `weights` asks for what cannot be.
    """
    described = describe_target(source)
    check_target(described.config, group.size)
    tensors = described.open_tensors()
    config = described.config
    packing, said = plan(
        config,
        tensors,
        weights,
        group=group,
        dtype=dtype,
        device=device,
        expert_prefix=expert_prefix(config.architecture),
        products=PRODUCTS,
    )
    try:
        model = Target(config, group=group, dtype=dtype, device=device, packing=packing)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise CheckpointError(_no_room(described, source, group, dtype, torch.device(device), error)) from error
    model.load(tensors, taken)
    notes = described.notes if said is None else (*described.notes, said)
    return LoadedTarget(config=config, model=model, tokenizer=described.tokenizer, source=source, notes=notes)


def _no_room(
    described: Described, source: Source, group: Group, dtype: torch.dtype, device: torch.device, error: RuntimeError
) -> str:
    """Before a weight is read: what the config says of sizes, and that the device has no such memory."""
    whole = Target(described.config, group=group, dtype=dtype, device="meta")
    num_bytes = sum(weight.numel() * weight.element_size() for weight in whole.parameters())
    return (
        f"{source.name}: its config describes weights of {num_bytes / 1e9:.1f} GB in {dtype}"
        f"{'' if group.size == 1 else ' a rank'}, for which there is no memory on {device} "
        f"({str(error).splitlines()[0]:.200}): take a smaller model, a narrower dtype, or more ranks (tensor_parallel)"
    )
