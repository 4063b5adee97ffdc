"""Paged attention for prefill, verify and plain decoding: all are S tokens a row behind a cached past.

The queries that share a KV head are packed into one tile (G·S rows), so the past is read once for all of them.

Shapes: B rows, S tokens a row, P pages a row, T = P·page_size gathered positions, H heads, G heads per KV head, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outpace.kernels.kv import KVCache, write_kv


def visible(start_B: Tensor, num_tokens: int, num_positions: int, window: int | None, first: int) -> Tensor:
    """Bool [B, S, T]: token s of a row, at position start + s, sees `first` … its own, the last `window` of them.

    A token before `first` sees itself, so that no row of the softmax is empty.
    """
    own_BS1 = (start_B[:, None] + torch.arange(num_tokens, device=start_B.device))[..., None]
    t_T = torch.arange(num_positions, device=start_B.device)
    mask = (t_T <= own_BS1) & (t_T >= own_BS1.clamp(max=first))
    return mask if window is None else mask & (t_T > own_BS1 - window)


def attention(q_BSHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, visible_BST: Tensor) -> Tensor:
    """Softmax attention with scale 1/sqrt(D) over what each query may see; returns [B, S, heads, D]."""
    B, S, num_heads, D = q_BSHD.shape
    num_kv_heads = k_BTHD.shape[2]
    G = num_heads // num_kv_heads
    q = q_BSHD.view(B, S, num_kv_heads, G, D).permute(0, 2, 3, 1, 4).reshape(B, num_kv_heads, G * S, D)
    mask = visible_BST[:, None, None].expand(B, 1, G, S, -1).reshape(B, 1, G * S, -1)
    o = F.scaled_dot_product_attention(q, k_BTHD.transpose(1, 2), v_BTHD.transpose(1, 2), attn_mask=mask)
    return o.view(B, num_kv_heads, G, S, D).permute(0, 3, 1, 2, 4).reshape(B, S, num_heads, D)


class PagedAttend:
    """The `attend` of one forward: writes the new keys and values, then attends over the row's pages.

    Args:
        cache: the model's pages.
        page_table_BP: pages of each row, cut to those the forward can reach.
        start_B: position of each row's first token.
        slots_BS: where the new tokens are stored.
        windows: sliding window of each layer.
        first: lowest position that may be seen (1 for a drafter, whose slot 0 holds nothing).
    """

    def __init__(
        self,
        cache: KVCache,
        page_table_BP: Tensor,
        start_B: Tensor,
        slots_BS: Tensor,
        windows: Sequence[int | None],
        first: int = 0,
    ) -> None:
        self._cache = cache
        self._slots_BS = slots_BS
        self._windows = windows
        offsets = torch.arange(cache.page_size, device=start_B.device)
        self._past = (page_table_BP[..., None] * cache.page_size + offsets).flatten(1)
        T = self._past.shape[1]
        self._visible = {w: visible(start_B, slots_BS.shape[1], T, w, first) for w in set(windows)}

    def __call__(self, layer: int, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> Tensor:
        """One layer's attention output, [B, S, heads, D]."""
        write_kv(self._cache, layer, k_BSHD, v_BSHD, self._slots_BS)
        keys, values = self._cache.keys_LNHD[layer], self._cache.values_LNHD[layer]
        shape = (*self._past.shape, *keys.shape[1:])
        k_BTHD = keys.index_select(0, self._past.flatten()).view(shape)
        v_BTHD = values.index_select(0, self._past.flatten()).view(shape)
        return attention(q_BSHD, k_BTHD, v_BTHD, self._visible[self._windows[layer]])
