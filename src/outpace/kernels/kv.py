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
    shares_values: bool = False
    """The values are the first elements of the keys, and not stored beside them."""

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
        shared_value_dim: int | None = None,
    ) -> KVCache:
        """Zeroed memory: a masked slot still enters a product, and zero times NaN would be NaN.

        With `shared_value_dim` the first so many elements of a key are its value.
        """
        shape = (num_layers, num_pages * page_size, num_kv_heads, head_dim)
        keys = torch.zeros(shape, dtype=dtype, device=device)
        if shared_value_dim is not None:
            return cls(keys, keys[..., :shared_value_dim], page_size, shares_values=True)
        return cls(keys, torch.zeros_like(keys), page_size)


def slots_of(positions_BS: Tensor, page_table_BP: Tensor, page_size: int) -> Tensor:
    """Slot of each position, int64 [B, S]; a position outside the row's table goes to slot 0 of the trash page."""
    page_BS = torch.div(positions_BS, page_size, rounding_mode="floor")
    inside = (page_BS >= 0) & (page_BS < page_table_BP.shape[1])
    pages = page_table_BP.gather(1, page_BS.clamp(0, page_table_BP.shape[1] - 1))
    return torch.where(inside, pages * page_size + positions_BS.remainder(page_size), TRASH_PAGE * page_size)


def slots_of_pages(page_table_BP: Tensor, page_size: int) -> Tensor:
    """Slots of all positions that page tables reach, in their order, int64 [B, P · page_size]."""
    offsets = torch.arange(page_size, device=page_table_BP.device)
    return (page_table_BP[..., None] * page_size + offsets).flatten(1)


def places(
    start_B: Tensor,
    num_tokens: int,
    kept_B: Tensor | None,
    page_table_BP: Tensor,
    page_size: int,
    *,
    ahead: int = 0,
) -> tuple[Tensor, Tensor]:
    """Where each row's tokens stand, and their slots, int64 [B, S] each.

    Args:
        start_B: position of each row's first token, less `ahead`.
        num_tokens: S.
        kept_B: how many of a row's tokens are kept, the others go to the trash page; None keeps all.
        page_table_BP: page tables; a position past them goes to the trash page.
        page_size: slots a page.
        ahead: added to `start_B`.
    """
    if start_B.is_cuda:
        from outpace.kernels.gpu import places as gpu

        return gpu.places(start_B, num_tokens, kept_B, page_table_BP, page_size, ahead)
    offset_S = torch.arange(ahead, ahead + num_tokens, device=start_B.device)
    positions_BS = start_B[:, None] + offset_S
    kept_BS = positions_BS if kept_B is None else torch.where(offset_S - ahead < kept_B[:, None], positions_BS, -1)
    return positions_BS, slots_of(kept_BS, page_table_BP, page_size)


def keep_boundaries(boundary_PH: Tensor, fused_BSH: Tensor, slots_BS: Tensor, page_size: int) -> None:
    """Features of tokens that complete a page become the page's.

    A rejected token may leave a wrong feature; the accepted one at its place comes later and overwrites it.
    """
    if slots_BS.is_cuda:
        from outpace.kernels.gpu import settle as gpu

        gpu.keep_boundaries(boundary_PH, fused_BSH.contiguous(), slots_BS, page_size)
        return
    completes = slots_BS.remainder(page_size) == page_size - 1
    pages = torch.where(completes, torch.div(slots_BS, page_size, rounding_mode="floor"), TRASH_PAGE)
    boundary_PH.index_copy_(0, pages.flatten(), fused_BSH.flatten(0, 1))


def write_kv(cache: KVCache, layer: int, k_BSHD: Tensor, v_BSHD: Tensor, slots_BS: Tensor) -> None:
    """Stores one layer's new keys and values at their slots. Of several tokens with one trash slot, any wins.

    What is not finite becomes 0: a masked slot still enters a product, and whoever gets the page next would inherit it.
    """
    slots = slots_BS.flatten()
    cache.keys_LNHD[layer].index_copy_(0, slots, k_BSHD.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0))
    if not cache.shares_values:
        cache.values_LNHD[layer].index_copy_(0, slots, v_BSHD.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0))
