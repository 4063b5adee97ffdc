"""What `LLM` was asked for, resolved: which model and drafter, where and in what format, and every setting.

`wanted` decides what can be decided before anything is loaded, `resolve` the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from outpace.config import EngineConfig, ResolvedConfig
from outpace.engine.devices import default_page_size, default_prefill_chunk, resolve_device, resolve_dtype
from outpace.engine.inputs import is_id
from outpace.engine.memory import bytes_per_page, check_pages, history, num_pages
from outpace.engine.shipped import shipped_drafter
from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.models.mixture import check_reuse
from outpace.models.source import Source, locate
from outpace.models.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be loaded, and how it is to be served."""

    source: Source
    drafter: str | None
    dtype: torch.dtype
    device: torch.device
    """Of all ranks, where there are several; each then takes its own."""
    aux_boundaries: tuple[int, ...] | None
    config: EngineConfig


def wanted(
    model: str,
    drafter: str | None,
    dtype: str,
    device: str,
    aux_boundaries: Sequence[int] | None,
    options: dict[str, Any],
) -> Wanted:
    """From `LLM`'s arguments.

    Raises:
        ConfigError: a setting is unknown or out of range.
        CheckpointError: there is no such model.
    """
    config = _engine_config(options)
    source = locate(model)
    place = resolve_device(device)
    name = shipped_drafter(source.name) if drafter == "auto" else drafter
    if name is None and aux_boundaries is not None:
        raise ConfigError(f"aux_boundaries are a drafter's, and {model} runs without one; name it, or leave them out")
    _check_simulated(config, drafts=name is not None)
    return Wanted(
        source=source,
        drafter=name,
        dtype=resolve_dtype(dtype, place),
        device=place,
        aux_boundaries=None if aux_boundaries is None else _boundaries(aux_boundaries),
        config=config,
    )


def resolve(config: EngineConfig, target: Target, drafter: Drafter | None, free: int) -> ResolvedConfig:
    """Settings in which nothing is left open, once the models are loaded.

    Args:
        config: as it was asked for.
        target, drafter: the models, or this rank's share of them.
        free: bytes of memory for KV pages, on the rank that has least.

    Raises:
        ConfigError: a setting does not fit the model or the memory.
        EngineError: there is not memory for one full context.
    """
    device, dtype = target.embed.weight.device, target.embed.weight.dtype
    limit = target.config.max_positions
    if config.max_context is not None and config.max_context > limit:
        raise ConfigError(
            f"max_context is {config.max_context}; the model was made for {limit} positions: lower it, or leave it out"
        )
    check_reuse(target.config.mixture, config.expert_reuse)
    _check_simulated(config, drafts=drafter is not None)
    max_context = config.max_context or limit
    page_size = config.page_size or default_page_size(device)
    page_bytes = bytes_per_page(target, drafter, page_size, dtype)
    shown = 0
    if drafter is not None and config.k:
        shown, kept_bytes = history(drafter, config, free, dtype)
        free = max(0, free - kept_bytes)
    if config.num_pages is not None:
        pages = check_pages(config.num_pages, page_bytes, free)
    else:
        pages_per_row = -(-max_context // page_size)
        pages = num_pages(free, config.memory_fraction, page_bytes, pages_per_row, config.max_rows)
    given = {field: getattr(config, field) for field in EngineConfig.__dataclass_fields__}
    resolved = {
        "max_context": max_context,
        "k": config.k if drafter is not None else 0,
        "num_pages": pages,
        "page_size": page_size,
        "history": shown,
        "prefill_chunk": config.prefill_chunk or default_prefill_chunk(device),
    }
    return ResolvedConfig(**given | resolved)


def _check_simulated(config: EngineConfig, *, drafts: bool) -> None:
    if config.simulate_acceptance and not (drafts and config.k):
        why = "k is 0" if drafts else "there is no drafter"
        raise ConfigError(f"simulate_acceptance is of drafts, and {why}: change that, or leave it out")


def _boundaries(given: Sequence[int]) -> tuple[int, ...]:
    if not all(map(is_id, given)):
        raise ConfigError(f"aux_boundaries are {list(given)}; they must be integers, as 2,15,27")
    return tuple(map(index, given))


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    known = set(EngineConfig.__dataclass_fields__)
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"unknown setting {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return EngineConfig(**options)
