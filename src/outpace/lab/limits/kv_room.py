"""How many KV pages a device has room for, with a drafter and without: what speculation costs in memory."""

from __future__ import annotations

from outpace.engine.devices import default_page_size
from outpace.engine.memory import bytes_per_page, free_bytes
from outpace.lab.limits.reads import drafter_reads, fusion_reads
from outpace.models.drafter import Drafter
from outpace.models.target import Target

FRACTION = 0.9


def kv_room(target: Target, drafter: Drafter) -> dict[str, int]:
    """Pages in 90% of the memory that is free now, both models being loaded, and if the drafter were not."""
    weight = target.embed.weight
    page_size = default_page_size(weight.device)
    free, itemsize, wiring = free_bytes(weight.device), weight.dtype.itemsize, drafter.wiring
    freed = drafter_reads(wiring, itemsize).weights + fusion_reads(wiring, itemsize).weights
    freed += wiring.vocab_size * wiring.hidden_size * itemsize if wiring.embedding == "own" else 0
    with_drafter = bytes_per_page(target, drafter, page_size, weight.dtype)
    without = bytes_per_page(target, None, page_size, weight.dtype)
    return {
        "auto": int(FRACTION * free) // with_drafter,
        "plain": int(FRACTION * (free + freed)) // without,
        "page_size": page_size,
    }
