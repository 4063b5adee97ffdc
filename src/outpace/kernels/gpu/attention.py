"""Paged attention of many tokens a row: prefill and catch-up. Few tokens a row are `decode.py`'s.

Lengths and page tables are read on the device, so a launch never depends on them. One program attends for a tile of the
queries that share a KV head; where these are few programs, each takes one split of the past, and a second kernel joins
the splits' softmaxes (`splits.py`). `kernels/attention.py` holds the reference.

Shapes: B rows, S tokens a row, P pages a row, H query heads, G of them per KV head, D head dimension, C splits.
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
from outpace.kernels.gpu.splits import join, room_for, span
from outpace.kernels.gpu.walk import BLOCK_T, LEAST, tiling_of

_LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["num_tokens", "num_pages", "num_splits"])
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    start_ptr,
    first_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    num_tokens,
    num_pages,
    num_splits,
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
    SPLIT: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile of queries against the past. Query m of a KV head is head m % G of token m // G."""
    launch_next(PDL)
    num_tiles = tl.cdiv(num_tokens * G, BLOCK_M)
    tile, split = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
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
    if SPLIT:
        _, last, origin, share = span(start, first, num_tokens, num_pages * PAGE, WINDOW, num_splits, BLOCK_T, LEAST)
        if origin + split * share >= last:
            return
        begin = tl.maximum(begin, origin + split * share)
        end = tl.minimum(end, origin + (split + 1) * share)

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
    table_row = table_ptr + row.to(tl.int64) * num_pages
    # What all queries of the tile see comes first, without masks; beside float32's products these would not matter.
    SEES_ALL: tl.constexpr = WINDOW == 0 and not HAS_FIRST and PRECISION is None
    seen_by_all = tl.maximum(begin, tl.minimum(first_own + 1, end) // BLOCK_T * BLOCK_T) if SEES_ALL else begin
    for MASKED in tl.static_range(0 if SEES_ALL else 1, 2):
        low = seen_by_all if MASKED else begin
        high = end if MASKED else seen_by_all
        for at in range(low, high, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            inside_T = t < end
            if PAGE % BLOCK_T == 0:  # the block lies in one page, whose every slot may be read
                slot = tl.load(table_row + at // PAGE) * PAGE + at % PAGE
                place_T = slot * slot_stride + kv_head * D + tl.arange(0, BLOCK_T) * slot_stride
                k_DT = tl.load(k_ptr + place_T[None, :] + d[:, None], mask=real_D[:, None], other=0.0)
                v_TD = tl.load(v_ptr + place_T[:, None] + d[None, :], mask=real_D[None, :], other=0.0)
            else:
                page_T = tl.load(table_row + t // PAGE, mask=inside_T, other=0)
                place_T = (page_T * PAGE + t % PAGE) * slot_stride + kv_head * D
                real_DT, real_TD = inside_T[None, :] & real_D[:, None], inside_T[:, None] & real_D[None, :]
                k_DT = tl.load(k_ptr + place_T[None, :] + d[:, None], mask=real_DT, other=0.0)
                v_TD = tl.load(v_ptr + place_T[:, None] + d[None, :], mask=real_TD, other=0.0)
            score_MT = tl.dot(q_MD, k_DT, input_precision=PRECISION) * scale
            if MASKED:
                seen_MT = inside_T[None, :] & (t[None, :] <= own_M[:, None]) & (t[None, :] >= low_M[:, None])
                score_MT = tl.where(seen_MT, score_MT, float("-inf"))
            weight_MT, fade_M, peak_M, total_M = soften(score_MT, peak_M, total_M)
            out_MD = tl.dot(weight_MT.to(v_TD.dtype), v_TD, out_MD * fade_M[:, None], input_precision=PRECISION)

    place_M = (row.to(tl.int64) * num_tokens + token_M) * num_heads + head_M
    kept_MD = live_M[:, None] & real_D[None, :]
    if not SPLIT:
        out_MD = out_MD / tl.where(total_M == 0.0, 1.0, total_M)[:, None]
        tl.store(out_ptr + place_M[:, None] * D + d[None, :], out_MD.to(out_ptr.dtype.element_ty), mask=kept_MD)
    else:
        place_M = place_M * num_splits + split
        tl.store(peak_ptr + place_M, peak_M, mask=live_M)
        tl.store(total_ptr + place_M, total_M, mask=live_M)
        tl.store(out_ptr + place_M[:, None] * D + d[None, :], out_MD, mask=kept_MD)


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
    max_splits: int | None = None,
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
        max_splits: most splits of the past; None chooses by how many programs there are without.
    """
    B, S, H, D = q_BSHD.shape
    num_kv_heads = keys_NHD.shape[1]
    G, reach = H // num_kv_heads, page_table_BP.shape[1] * page_size
    tiling = tiling_of(B, S, H, num_kv_heads, D * q_BSHD.dtype.itemsize, max_splits)
    splits = tiling.splits
    out_BSHD = torch.empty((B, S, H, D), dtype=q_BSHD.dtype, device=q_BSHD.device)
    parts, peaks, totals = room_for(out_BSHD, splits)
    first = start_B if first_B is None else first_B
    shared = {"WINDOW": window or 0, "HAS_FIRST": first_B is not None, "D": D, "LEAST": LEAST}
    shared |= {"BLOCK_T": BLOCK_T, "BLOCK_D": max(16, triton.next_power_of_2(D))} | overlapped(q_BSHD.device)
    num_launched = min(splits, triton.cdiv(reach, LEAST))  # no row has more
    _attend[(triton.cdiv(G * S, tiling.queries) * num_launched, num_kv_heads, B)](
        q_BSHD,
        keys_NHD,
        values_NHD,
        page_table_BP,
        start_B,
        first,
        parts,
        peaks,
        totals,
        S,
        page_table_BP.shape[1],
        splits,
        *q_BSHD.stride()[:3],
        keys_NHD.stride(0),
        _LOG2_E * D**-0.5,
        G=G,
        PAGE=page_size,
        SPLIT=splits > 1,
        BLOCK_M=tiling.queries,
        PRECISION="ieee" if q_BSHD.dtype == torch.float32 else None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        enable_fp_fusion=False,  # a block has the same bits with masks and without
        **shared,
    )
    if splits > 1:
        shared |= {"H": H, "SPLITS": splits, "BLOCK_C": min(16, splits), "num_warps": 1}
        join[(B * S * H,)](parts, peaks, totals, start_B, first, out_BSHD, S, reach, **shared)
    return out_BSHD
