"""How many KV pages fit: the memory that is left after the weights, under a stated fraction."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from outpace.config import EngineConfig
from outpace.errors import ConfigError, EngineError
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.speculation.recent import bytes_per_token, num_kept
from outpace.wording import count_of

HISTORY = 256
"""A drafter that is shown fewer of the last tokens proposes worse: docs/log.md has by how much."""
HISTORY_FRACTION = 0.02


def bytes_per_page(target: Target, drafter: Drafter | None, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers of both models, the boundary feature included, on one rank."""
    config = target.config
    kinds = 2 if config.shared_value_dim is None else 1
    elements = page_size * kinds * config.num_layers * target.num_cached_heads * config.key_dim
    if drafter is not None:
        wiring = drafter.wiring
        elements += page_size * drafter.num_cached_heads * wiring.kv_elements_per_head + wiring.hidden_size
    return elements * dtype.itemsize


def history(drafter: Drafter, config: EngineConfig, free: int, dtype: torch.dtype) -> tuple[int, int]:
    """How many tokens of a row a drafter can be shown again when drafting resumes, and the bytes that they take.

    At most `HISTORY`, less where that is more than a small part of the free memory, and at least one.
    """
    per_token = bytes_per_token(drafter, dtype) * (config.max_rows + 1)
    affordable = int(free * HISTORY_FRACTION) // per_token - num_kept(0, config.k)
    tokens = max(1, min(HISTORY, affordable))
    return tokens, num_kept(tokens, config.k) * per_token


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device now; on a CPU, what the system could give without swapping."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check_pages(num_pages: int, page_bytes: int, free: int) -> int:
    """A number of pages that a user asked for.

    Raises:
        ConfigError: they are more than the free memory.
    """
    if num_pages * page_bytes > free:
        raise ConfigError(
            f"num_pages is {num_pages}, which takes {num_pages * page_bytes / 2**30:.1f} GiB; {free / 2**30:.1f} GiB "
            f"are free: give at most {free // page_bytes}, or leave it out"
        )
    return num_pages


def num_pages(free: int, fraction: float, page_bytes: int, pages_per_row: int, max_rows: int) -> int:
    """Pages under `fraction` of the free bytes, at most what `max_rows` full contexts could use.

    Raises:
        EngineError: not even one full context fits.
    """
    affordable = int(free * fraction) // page_bytes
    if affordable < pages_per_row + 1:
        raise EngineError(
            f"{fraction:.0%} of {free / 2**30:.1f} GiB free memory holds {count_of(affordable, 'KV page')}; one "
            "full context needs "
            f"{pages_per_row + 1}, the trash page included: lower max_context, or raise memory_fraction"
        )
    return min(affordable, pages_per_row * max_rows + 1)
