"""Paged key/value memory: where it lies, how big it is, and how one forward writes into it.

Memory is a flat array of slots; page p owns slots p·page_size … (p+1)·page_size - 1. Page 0 belongs to nobody: whatever
must not be kept (padding, positions past the context) is written there, so writes never branch.

Shapes: L layers, N slots, B rows, S tokens a row, P pages a row, H KV heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TRASH_PAGE = 0


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one model's layers, for all pages."""

    keys_LNHD: Tensor
    values_LNHD: Tensor
    page_size: int

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """Zeroed memory: a masked slot still enters a product, and zero times NaN would be NaN."""
        shape = (num_layers, num_pages * page_size, num_kv_heads, head_dim)
        keys = torch.zeros(shape, dtype=dtype, device=device)
        return cls(keys, torch.zeros_like(keys), page_size)


def slots_of(positions_BS: Tensor, page_table_BP: Tensor, page_size: int) -> Tensor:
    """Slot of each position, int64 [B, S]; a position outside the row's table goes to the trash page."""
    page_BS = torch.div(positions_BS, page_size, rounding_mode="floor")
    inside = (page_BS >= 0) & (page_BS < page_table_BP.shape[1])
    pages = page_table_BP.gather(1, page_BS.clamp(0, page_table_BP.shape[1] - 1))
    return torch.where(inside, pages, TRASH_PAGE) * page_size + positions_BS.remainder(page_size)


def write_kv(cache: KVCache, layer: int, k_BSHD: Tensor, v_BSHD: Tensor, slots_BS: Tensor) -> None:
    """Stores one layer's new keys and values at their slots. Of several tokens with one trash slot, any wins.

    What is not finite becomes 0: a masked slot still enters a product, and whoever gets the page next would inherit it.
    """
    slots = slots_BS.flatten()
    cache.keys_LNHD[layer].index_copy_(0, slots, k_BSHD.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0))
    cache.values_LNHD[layer].index_copy_(0, slots, v_BSHD.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0))
