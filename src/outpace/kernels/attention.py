"""Attention over pages for prefill, verify and plain decoding: all are S tokens a row behind a cached past.

On a GPU the kernels of `gpu/decode.py` and `gpu/attention.py` read the pages where they lie. Elsewhere they are
gathered first; that is also the kernels' reference. All pack the queries that share a KV head into one tile (G·S rows),
so that the past is read once for all of them.

Shapes: B rows, S tokens a row, P pages a row, T = P·page_size gathered positions, H heads, G heads per KV head, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outpace.kernels import plain_latents
from outpace.kernels.kv import TRASH_PAGE, KVCache, slots_of_pages, write_kv

AttendPages = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
"""(q_BSHD, one layer's keys_NHD and values_NHD, window) → o_BSHD, over the pages of each row."""

MIN_TILE_ROWS = 4
"""In 16 bits PyTorch's CPU kernel rounds a tile of fewer query rows differently (torch 2.13, AVX-512 bf16). Filled with
copies, it gives a plain step the bits that a verify has."""

SPLIT = 512
"""In 16 bits that kernel sums what it sees in splits of so many positions, and how it sums the last, shorter one
depends on its length. Filled up, a plain step and a verify that reaches a page further sum alike."""


def visible(
    start_B: Tensor, num_tokens: int, num_positions: int, window: int | None, first_B: Tensor | None = None
) -> Tensor:
    """Bool [B, S, T]: token s of a row, at position start + s, sees `first` … its own, the last `window` of them.

    A token before `first` (None is 0) sees itself, so that no row of the softmax is empty.
    """
    own_BS1 = (start_B[:, None] + torch.arange(num_tokens, device=start_B.device))[..., None]
    t_T = torch.arange(num_positions, device=start_B.device)
    mask = t_T <= own_BS1
    if first_B is not None:
        mask &= t_T >= own_BS1.minimum(first_B[:, None, None])
    return mask if window is None else mask & (t_T > own_BS1 - window)


def attention(q_BSHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, visible_BST: Tensor) -> Tensor:
    """Softmax attention with scale 1/sqrt(D) over what each query may see; returns [B, S, heads, D of the values]."""
    B, S, num_heads, D = q_BSHD.shape
    num_kv_heads = k_BTHD.shape[2]
    G = num_heads // num_kv_heads
    q = q_BSHD.view(B, S, num_kv_heads, G, D).permute(0, 2, 3, 1, 4).reshape(B, num_kv_heads, G * S, D)
    mask = visible_BST[:, None, None].expand(B, 1, G, S, -1).reshape(B, 1, G * S, -1)
    if G * S < MIN_TILE_ROWS and q.dtype.itemsize == 2:
        copies = -(-MIN_TILE_ROWS // (G * S))
        q, mask = q.repeat(1, 1, copies, 1), mask.repeat(1, 1, copies, 1)
    o = F.scaled_dot_product_attention(q, k_BTHD.transpose(1, 2), v_BTHD.transpose(1, 2), attn_mask=mask)
    o = o[:, :, : G * S]
    return o.view(B, num_kv_heads, G, S, -1).permute(0, 3, 1, 2, 4).reshape(B, S, num_heads, -1)


class PagedAttend:
    """The `attend` of one forward: writes the new keys and values, then attends over the row's pages.

    Args:
        cache: the model's pages.
        page_table_BP: pages of each row, cut to those the forward can reach; contiguous on a GPU.
        start_B: position of each row's first token.
        slots_BS: where the new tokens are stored.
        windows: sliding window of each layer.
        first_B: lowest position that each row sees; None is 0.
    """

    def __init__(
        self,
        cache: KVCache,
        page_table_BP: Tensor,
        start_B: Tensor,
        slots_BS: Tensor,
        windows: Sequence[int | None],
        first_B: Tensor | None = None,
    ) -> None:
        self._cache = cache
        self._table_BP, self._start_B, self._first_B = page_table_BP, start_B, first_B
        self._slots_BS = slots_BS
        self._windows = windows
        self._gathered: AttendPages | None = None
        """For all layers, made when the first one attends."""
        self._past_BT: Tensor | None = None
        """Slots of all positions in reach, likewise."""

    def __call__(self, layer: int, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> Tensor:
        """One layer's attention output, [B, S, heads, D]."""
        self.store(layer, k_BSHD, v_BSHD)
        if self._start_B.is_cuda:
            return self._in_place(layer, q_BSHD)
        if self._gathered is None:
            self._gathered = self._gather(set(self._windows))
        keys_NHD, values_NHD = self._cache.keys_LNHD[layer], self._cache.values_LNHD[layer]
        return self._gathered(q_BSHD, keys_NHD, values_NHD, self._windows[layer])

    def store(self, layer: int, k_BSHD: Tensor, v_BSHD: Tensor) -> None:
        """Writes one layer's keys and values, and attends to nothing."""
        write_kv(self._cache, layer, k_BSHD, v_BSHD, self._slots_BS)

    def store_product(
        self, layer: int, kv_BSND: Tensor, rotary: tuple[Tensor, Tensor], norms: tuple[Tensor, Tensor, float] | None
    ) -> None:
        """On a GPU, the same from a product of key and value heads, contiguous and not turned; as `from_product`."""
        from outpace.kernels.gpu.rope import turn_and_store

        keys_NHD, values_NHD = self._cache.keys_LNHD[layer], self._cache.values_LNHD[layer]
        turn_and_store(kv_BSND, rotary, norms, self._slots_BS, keys_NHD, values_NHD)

    def takes_few(self, num_tokens: int, num_heads: int, num_kv_heads: int) -> bool:
        """Whether `from_product` takes a product of so many tokens a row as summands."""
        from outpace.kernels.gpu import decode

        return decode.fits(num_tokens, num_heads, num_kv_heads)

    def from_product(
        self,
        layer: int,
        qkv: Tensor,
        rotary: tuple[Tensor, Tensor],
        norms: tuple[Tensor, Tensor, float] | None,
        num_heads: int,
    ) -> Tensor:
        """On a GPU, one layer's attention output [B, S, heads · D] from its product: norms, turning, writing included.

        Args:
            layer: which.
            qkv: [B, S, ...] query, key and value heads in this order, contiguous, not turned yet; or its summands.
            rotary: cos and sin of the tokens.
            norms: weights of the query and key norms, and their epsilon.
            num_heads: query heads.
        """
        from outpace.kernels.gpu.decode import decode_attention
        from outpace.kernels.gpu.rope import turn_and_store

        keys_NHD, values_NHD = self._cache.keys_LNHD[layer], self._cache.values_LNHD[layer]
        if self.takes_few(self._slots_BS.shape[1], num_heads, keys_NHD.shape[1]):
            return decode_attention(
                qkv,
                rotary,
                norms,
                self._slots_BS,
                keys_NHD,
                values_NHD,
                self._table_BP,
                self._start_B,
                num_heads=num_heads,
                page_size=self._cache.page_size,
                window=self._windows[layer],
                first_B=self._first_B,
            )
        qkv_BSND = qkv.view(*qkv.shape[:2], -1, keys_NHD.shape[2])
        q_BSHD = turn_and_store(qkv_BSND, rotary, norms, self._slots_BS, keys_NHD, values_NHD)
        return self._in_place(layer, q_BSHD).flatten(2)

    def store_latents(
        self, layer: int, down: Tensor, rotary: tuple[Tensor, Tensor], q_weight: Tensor | None, kv_weight: Tensor,
        eps: float,
    ) -> Tensor | None:  # fmt: skip
        """On a GPU, stores one layer's latents and gives the queries' own, as `gpu.latents.store_latents`."""
        from outpace.kernels.gpu.latents import store_latents

        cache_NE = self._cache.keys_LNHD[layer, :, 0]
        return store_latents(down, rotary, q_weight, kv_weight, eps, self._slots_BS, cache_NE)

    def over_latents(
        self,
        layer: int,
        absorbed_BSNR: Tensor,
        turned_BSND: Tensor,
        rotary: tuple[Tensor, Tensor],
        scale: float,
    ) -> Tensor:
        """On a GPU, one layer's latent attention output [B, S, N, R]; the new tokens' latents are stored already.

        Args:
            layer: which.
            absorbed_BSNR: queries in the latents' space, contiguous.
            turned_BSND: their part that is still to be turned.
            rotary: cos and sin of the tokens.
            scale: of the scores.
        """
        from outpace.kernels.gpu.latent import latent_attention

        return latent_attention(
            absorbed_BSNR,
            turned_BSND,
            rotary,
            self._cache.keys_LNHD[layer, :, 0],
            self._table_BP,
            self._start_B,
            scale=scale,
            page_size=self._cache.page_size,
            first_B=self._first_B,
        )

    def plain_pays(self, kv_up_NOR: Tensor) -> bool:
        """Whether latents are better attended to by `over_plain`, by how many tokens a row follow."""
        num_positions = self._table_BP.numel() * self._cache.page_size
        num_tokens = self._slots_BS.shape[1]
        return self._first_B is None and plain_latents.pays(num_tokens, num_positions, kv_up_NOR)

    def over_plain(
        self,
        layer: int,
        plain_BSNP: Tensor,
        turned_BSND: Tensor,
        rotary: tuple[Tensor, Tensor],
        kv_up_NOR: Tensor,
        scale: float,
    ) -> Tensor:
        """One layer's latent attention output [B, S, N, V], in plain form; the new tokens' latents are stored already.

        Args:
            layer: which.
            plain_BSNP: queries, their part that is not turned.
            turned_BSND: their other part; on a GPU it is still to be turned.
            rotary: cos and sin of the tokens.
            kv_up_NOR: from a latent to each head's plain key, then value.
            scale: of the scores.
        """
        if self._past_BT is None:
            self._past_BT = slots_of_pages(self._table_BP, self._cache.page_size)
        latents_BTE = self._cache.keys_LNHD[layer, :, 0][self._past_BT]
        kv_BTNO = plain_latents.bring_up(latents_BTE, kv_up_NOR)
        if self._start_B.is_cuda:
            from outpace.kernels.gpu.plain_latents import plain_latent_attention

            return plain_latent_attention(
                plain_BSNP, turned_BSND, rotary, kv_BTNO, latents_BTE, self._start_B, scale=scale
            )
        q_BSNQ = torch.cat((plain_BSNP, turned_BSND), -1)
        seen_BST = visible(self._start_B, q_BSNQ.shape[1], kv_BTNO.shape[1], None)
        turned_BTD, plain_dim = latents_BTE[..., kv_up_NOR.shape[-1] :], plain_BSNP.shape[-1]
        return plain_latents.attend(q_BSNQ, kv_BTNO, turned_BTD, seen_BST, plain_dim=plain_dim, scale=scale)

    def _in_place(self, layer: int, q_BSHD: Tensor) -> Tensor:
        """On a GPU: the kernel reads the pages where they lie."""
        from outpace.kernels.gpu.attention import paged_attention

        return paged_attention(
            q_BSHD,
            self._cache.keys_LNHD[layer],
            self._cache.values_LNHD[layer],
            self._table_BP,
            self._start_B,
            page_size=self._cache.page_size,
            window=self._windows[layer],
            first_B=self._first_B,
        )

    def _gather(self, windows: set[int | None]) -> AttendPages:
        """Anywhere: each row's pages are copied together, then PyTorch attends."""
        table_BP, page_size = self._table_BP, self._cache.page_size
        if self._cache.keys_LNHD.dtype.itemsize == 2:
            num_pages = table_BP.shape[1]
            whole = -(-num_pages * page_size // SPLIT) * SPLIT // page_size
            table_BP = F.pad(table_BP, (0, max(0, whole - num_pages)), value=TRASH_PAGE)
        past_BT = slots_of_pages(table_BP, page_size)
        past = past_BT.flatten()
        num_tokens = self._slots_BS.shape[1]
        masks = {w: visible(self._start_B, num_tokens, past_BT.shape[1], w, self._first_B) for w in windows}

        def attend(q_BSHD: Tensor, keys_NHD: Tensor, values_NHD: Tensor, window: int | None) -> Tensor:
            k_BTHD = keys_NHD.index_select(0, past).unflatten(0, past_BT.shape)
            v_BTHD = values_NHD.index_select(0, past).unflatten(0, past_BT.shape)
            return attention(q_BSHD, k_BTHD, v_BTHD, masks[window])

        return attend
