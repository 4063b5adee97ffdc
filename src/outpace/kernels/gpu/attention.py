"""Paged attention of many tokens a row: prefill and catch-up. Few tokens a row are `decode.py`'s.

Lengths and page tables are read on the device, so a launch never depends on them. One program attends for a tile of the
queries that share a KV head. `kernels/attention.py` holds the reference.

Shapes: B rows, S tokens a row, P pages a row, H query heads, G of them per KV head, D head dimension.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.softmax import soften

_LOG2_E = 1.4426950408889634
_BLOCK_T = 64
"""Positions of the past that a program reads at a time."""


@triton.jit(do_not_specialize=["num_tokens", "num_pages"])
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    start_ptr,
    first_ptr,
    out_ptr,
    num_tokens,
    num_pages,
    q_stride_b,
    q_stride_s,
    q_stride_h,
    slot_stride,
    scale,
    WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile of queries against the past. Query m of a KV head is head m % G of token m // G."""
    launch_next(PDL)
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.program_id(2)
    num_heads = tl.num_programs(1) * G

    wait(PDL)
    start = tl.load(start_ptr + row).to(tl.int32)
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token_M = m // G
    head_M = kv_head * G + m % G
    live_M = token_M < num_tokens
    own_M = start + token_M
    first_own = start + tile * BLOCK_M // G
    first = tl.load(first_ptr + row).to(tl.int32) if HAS_FIRST else 0
    low_M = tl.minimum(own_M, first)
    begin = tl.minimum(first_own, first)
    if WINDOW > 0:
        low_M = tl.maximum(low_M, own_M - WINDOW + 1)
        begin = tl.maximum(begin, first_own - WINDOW + 1)
    end = start + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // G + 1, num_tokens)
    end = tl.minimum(end, num_pages * PAGE)
    begin = begin // BLOCK_T * BLOCK_T

    d = tl.arange(0, BLOCK_D)
    real_D = d < D
    q_MD = tl.load(
        q_ptr + row * q_stride_b + token_M[:, None] * q_stride_s + head_M[:, None] * q_stride_h + d[None, :],
        mask=live_M[:, None] & real_D[None, :],
        other=0.0,
    )
    peak_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total_M = tl.zeros((BLOCK_M,), tl.float32)
    out_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for at in range(begin, end, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        inside_T = t < end
        page_T = tl.load(table_ptr + row * num_pages + t // PAGE, mask=inside_T, other=0)
        slot_T = (page_T * PAGE + t % PAGE) * slot_stride + kv_head * D
        k_DT = tl.load(k_ptr + slot_T[None, :] + d[:, None], mask=inside_T[None, :] & real_D[:, None], other=0.0)
        v_TD = tl.load(v_ptr + slot_T[:, None] + d[None, :], mask=inside_T[:, None] & real_D[None, :], other=0.0)
        score_MT = tl.dot(q_MD, k_DT, input_precision=PRECISION) * scale
        seen_MT = inside_T[None, :] & (t[None, :] <= own_M[:, None]) & (t[None, :] >= low_M[:, None])
        score_MT = tl.where(seen_MT, score_MT, float("-inf"))
        weight_MT, fade_M, peak_M, total_M = soften(score_MT, peak_M, total_M)
        out_MD = tl.dot(weight_MT.to(v_TD.dtype), v_TD, out_MD * fade_M[:, None], input_precision=PRECISION)

    place_M = (row.to(tl.int64) * num_tokens + token_M) * num_heads + head_M
    kept_MD = live_M[:, None] & real_D[None, :]
    out_MD = out_MD / tl.where(total_M == 0.0, 1.0, total_M)[:, None]
    tl.store(out_ptr + place_M[:, None] * D + d[None, :], out_MD.to(out_ptr.dtype.element_ty), mask=kept_MD)


def paged_attention(
    q_BSHD: Tensor,
    keys_NHD: Tensor,
    values_NHD: Tensor,
    page_table_BP: Tensor,
    start_B: Tensor,
    *,
    page_size: int,
    window: int | None,
    first_B: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention of S tokens a row over its pages, [B, S, H, D], with scale 1/sqrt(D).

    Args:
        q_BSHD: queries; the last dimension is contiguous.
        keys_NHD: one layer's keys for all slots, contiguous; those of the S tokens are stored already.
        values_NHD: its values.
        page_table_BP: int64, contiguous; it reaches every position that counts.
        start_B: int64 position of each row's first token.
        page_size: slots a page.
        window: how many positions a token sees, its own among them; None is all.
        first_B: int64 lowest position that each row sees, None for 0; a token before it sees itself.
    """
    B, S, H, D = q_BSHD.shape
    num_kv_heads = keys_NHD.shape[1]
    G = H // num_kv_heads
    block_m = min(64, max(16, triton.next_power_of_2(G * S)))
    num_tiles = triton.cdiv(G * S, block_m)
    out_BSHD = torch.empty((B, S, H, D), dtype=q_BSHD.dtype, device=q_BSHD.device)
    block_d = max(16, triton.next_power_of_2(D))
    _attend[(num_tiles, num_kv_heads, B)](
        q_BSHD,
        keys_NHD,
        values_NHD,
        page_table_BP,
        start_B,
        start_B if first_B is None else first_B,
        out_BSHD,
        S,
        page_table_BP.shape[1],
        *q_BSHD.stride()[:3],
        keys_NHD.stride(0),
        _LOG2_E * D**-0.5,
        WINDOW=window or 0,
        HAS_FIRST=first_B is not None,
        G=G,
        D=D,
        PAGE=page_size,
        BLOCK_M=block_m,
        BLOCK_T=_BLOCK_T,
        BLOCK_D=block_d,
        PRECISION="ieee" if q_BSHD.dtype == torch.float32 else None,
        num_warps=4,
        **overlapped(q_BSHD.device),
    )
    return out_BSHD
