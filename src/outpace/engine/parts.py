"""Loading a target and its drafter, or one rank's share of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from outpace.config import Weights
from outpace.distributed.group import ALONE, Group
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.source import Source


def load_parts(
    source: Source,
    drafter: str | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    aux_boundaries: tuple[int, ...] | None,
    group: Group = ALONE,
    weights: Weights = "auto",
    taken: Callable[[], None] | None = None,
) -> tuple[LoadedTarget, Drafter | None]:
    """Both models, packed; `taken` is called after each tensor.

    Raises:
        CheckpointError: one cannot be loaded, or they do not fit.
        ConfigError: the ranks cannot share the target evenly, or `weights` asks for what cannot be.
    """
    target = load_target(source, dtype=dtype, device=device, group=group, weights=weights, taken=taken)
    loaded = None
    if drafter is not None:
        loaded = load_drafter(
            drafter, target.model, dtype=dtype, device=device, aux_boundaries=aux_boundaries, taken=taken
        )
        loaded.pack()
    target.model.pack()
    return target, loaded
