"""A target, the drafter beside it if there is one, and the pages of both. The same page table serves both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outpace.kernels.kv import KVCache
from outpace.models.drafter import Drafter
from outpace.models.target import Target


@dataclass(frozen=True, slots=True)
class Pair:
    """What a cycle computes with; never changed after it is made."""

    target: Target
    cache: KVCache
    drafter: Drafter | None = None
    drafter_cache: KVCache | None = None
    expert_reuse: int = 0
    """See `EngineConfig`."""

    @classmethod
    def allocate(
        cls,
        target: Target,
        drafter: Drafter | None,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        expert_reuse: int = 0,
    ) -> Pair:
        """Allocates the pages of both models on the target's device."""
        config, device = target.config, target.embed.weight.device

        def pages(num_layers: int, num_kv_heads: int, head_dim: int, shared_value_dim: int | None = None) -> KVCache:
            return KVCache.allocate(
                num_layers=num_layers,
                num_pages=num_pages,
                page_size=page_size,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=dtype,
                device=device,
                shared_value_dim=shared_value_dim,
            )

        cache = pages(config.num_layers, target.num_cached_heads, config.key_dim, config.shared_value_dim)
        if drafter is None:
            return cls(target, cache, expert_reuse=expert_reuse)
        wiring = drafter.wiring
        own = pages(1, drafter.num_cached_heads, wiring.key_dim, wiring.shared_value_dim)
        return cls(target, cache, drafter, own, expert_reuse)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.wiring.aux_boundaries if self.drafter is not None else ()

    @property
    def max_drafted(self) -> int:
        """Drafts stand only before this position."""
        return self.drafter.wiring.max_positions if self.drafter is not None else 0
