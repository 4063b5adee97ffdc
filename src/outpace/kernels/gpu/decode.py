"""Attention of a few tokens a row, from the product of queries, keys and values to its output: two launches a layer.

A program takes the queries that share a KV head, all S tokens of a row, against one split of the row's past. It turns
its queries, turns and stores those new keys and values that lie in its split, and then reads the split from the pages.
A second kernel joins the splits' softmaxes (`splits.py`).

Shapes: B rows, S tokens a row, P pages a row, H query heads, N KV heads, G = H / N, D head dimension, C splits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import fetch, launch_next, overlapped, wait
from outpace.kernels.gpu.rope import finite
from outpace.kernels.gpu.softmax import soften
from outpace.kernels.gpu.splits import join, room_for, span
from outpace.kernels.gpu.walk import BLOCK_T, WARPS, walk_of

MAX_QUERIES = 64
"""Queries that share a KV head: G · S at most."""
_LOG2_E = 1.4426950408889634


@triton.jit
def _read(place, part_stride, live, kind: tl.constexpr, PARTS: tl.constexpr):
    """A tile of the product, its summands added up, rounded to the model's dtype."""
    x = tl.load(place, mask=live, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x += tl.load(place + part * part_stride, mask=live, other=0.0).to(tl.float32)
    return x.to(kind)


@triton.jit
def _turn(
    place_T1,
    angle_T1,
    live_TD,
    cos_ptr,
    sin_ptr,
    weight_ptr,
    part_stride,
    eps,
    kind: tl.constexpr,
    PARTS: tl.constexpr,
    NORMS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Heads that begin at some places of the product: normed if the model does that, and turned."""
    d = tl.arange(0, BLOCK_D)
    partner = (d + D // 2) % D
    x = _read(place_T1 + d[None, :], part_stride, live_TD, kind, PARTS)
    y = _read(place_T1 + partner[None, :], part_stride, live_TD, kind, PARTS)
    if NORMS:
        wide = x.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 1) / D + eps)
        x_weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
        y_weight = tl.load(weight_ptr + partner, mask=d < D, other=0.0).to(tl.float32)
        y = (y.to(tl.float32) * scale[:, None] * y_weight[None, :]).to(kind)
        x = (wide * scale[:, None] * x_weight[None, :]).to(kind)
    cos = tl.load(cos_ptr + angle_T1 * D + d[None, :], mask=live_TD, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle_T1 * D + d[None, :], mask=live_TD, other=0.0).to(tl.float32)
    return (x.to(tl.float32) * cos + y.to(tl.float32) * sin).to(kind)


@triton.jit(do_not_specialize=["num_tokens"])
def _decode(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_weight_ptr,
    k_weight_ptr,
    slot_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    start_ptr,
    first_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    num_tokens,
    num_pages,
    part_stride,
    eps,
    scale,
    PARTS: tl.constexpr,
    NORMS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    G: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    split, num_splits = tl.program_id(0), tl.num_programs(0)
    kv_head = tl.program_id(1)
    row = tl.program_id(2)
    kind: tl.constexpr = keys_ptr.dtype.element_ty

    # What is older than the product before.
    start = tl.load(start_ptr + row).to(tl.int32)
    first = tl.load(first_ptr + row).to(tl.int32) if HAS_FIRST else 0
    low, high, origin, share = span(start, first, num_tokens, num_pages * PAGE, WINDOW, num_splits, BLOCK_T, 0)
    begin = tl.maximum(origin + split * share, low)
    end = tl.minimum(origin + (split + 1) * share, high)
    if SPLIT and begin >= end:
        return  # the row is too short for so many splits
    d = tl.arange(0, BLOCK_D)
    real_D = d < D
    table_row = table_ptr + row.to(tl.int64) * num_pages
    t = begin + tl.arange(0, BLOCK_T)
    page_T = tl.load(table_row + t // PAGE, mask=t < end, other=0)
    line_TD = ((page_T * PAGE + t % PAGE) * N + kv_head)[:, None] * D + tl.arange(0, BLOCK_D // 16)[None, :] * 16
    fetch(keys_ptr + line_TD, PDL)
    fetch(values_ptr + line_TD, PDL)
    wait(PDL)

    m = tl.arange(0, BLOCK_M)
    token_M = m // G
    head_M = kv_head * G + m % G
    live_M = token_M < num_tokens
    live_MD = live_M[:, None] & real_D[None, :]
    heads: tl.constexpr = (G + 2) * N
    place_M = (row.to(tl.int64) * num_tokens + token_M) * heads + head_M
    angle_M = row.to(tl.int64) * num_tokens + token_M
    q_MD = _turn(
        qkv_ptr + place_M[:, None] * D, angle_M[:, None], live_MD, cos_ptr, sin_ptr, q_weight_ptr, part_stride, eps,
        kind, PARTS, NORMS, D, BLOCK_D,
    )  # fmt: skip

    if end > start:
        s = tl.arange(0, BLOCK_S)
        mine_S = (s < num_tokens) & (start + s >= begin) & (start + s < end)
        mine_SD = mine_S[:, None] & real_D[None, :]
        angle_S = row.to(tl.int64) * num_tokens + s
        place_S = qkv_ptr + (angle_S * heads + G * N + kv_head) * D
        k_SD = _turn(
            place_S[:, None], angle_S[:, None], mine_SD, cos_ptr, sin_ptr, k_weight_ptr, part_stride, eps,
            kind, PARTS, NORMS, D, BLOCK_D,
        )  # fmt: skip
        v_SD = _read(place_S[:, None] + N * D + d[None, :], part_stride, mine_SD, kind, PARTS)
        slot_S = tl.load(slot_ptr + angle_S, mask=mine_S, other=0)
        kept_SD = (slot_S * N + kv_head)[:, None] * D + d[None, :]
        tl.store(keys_ptr + kept_SD, finite(k_SD), mask=mine_SD)
        tl.store(values_ptr + kept_SD, finite(v_SD), mask=mine_SD)
        tl.debug_barrier()  # the loop reads them back

    own_M = start + token_M
    low_M = tl.minimum(own_M, first)
    if WINDOW > 0:
        low_M = tl.maximum(low_M, own_M - WINDOW + 1)
    peak_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total_M = tl.zeros((BLOCK_M,), tl.float32)
    out_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for at in range(begin, end, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        inside_T = t < end
        if PAGE % BLOCK_T == 0:  # the block lies in one page, whose every slot may be read
            place = ((tl.load(table_row + at // PAGE) * PAGE + at % PAGE) * N + kv_head) * D
            within_T = tl.arange(0, BLOCK_T) * (N * D)
            k_DT = tl.load(keys_ptr + place + within_T[None, :] + d[:, None], mask=real_D[:, None], other=0.0)
            v_TD = tl.load(values_ptr + place + within_T[:, None] + d[None, :], mask=real_D[None, :], other=0.0)
        else:
            page_T = tl.load(table_row + t // PAGE, mask=inside_T, other=0)
            slot_T = (page_T * PAGE + t % PAGE) * (N * D) + kv_head * D
            real_DT, real_TD = inside_T[None, :] & real_D[:, None], inside_T[:, None] & real_D[None, :]
            k_DT = tl.load(keys_ptr + slot_T[None, :] + d[:, None], mask=real_DT, other=0.0)
            v_TD = tl.load(values_ptr + slot_T[:, None] + d[None, :], mask=real_TD, other=0.0)
        score_MT = tl.dot(q_MD, k_DT, input_precision=PRECISION) * scale
        seen_MT = inside_T[None, :] & (t[None, :] <= own_M[:, None]) & (t[None, :] >= low_M[:, None])
        score_MT = tl.where(seen_MT, score_MT, float("-inf"))
        weight_MT, fade_M, peak_M, total_M = soften(score_MT, peak_M, total_M)
        out_MD = tl.dot(weight_MT.to(kind), v_TD, out_MD * fade_M[:, None], input_precision=PRECISION)

    query_M = (row.to(tl.int64) * num_tokens + token_M) * (G * N) + head_M
    if not SPLIT:
        out_MD = out_MD / tl.where(total_M == 0.0, 1.0, total_M)[:, None]
        tl.store(out_ptr + query_M[:, None] * D + d[None, :], out_MD.to(kind), mask=live_MD)
    else:
        place_M = query_M * num_splits + split
        tl.store(peak_ptr + place_M, peak_M, mask=live_M)
        tl.store(total_ptr + place_M, total_M, mask=live_M)
        tl.store(out_ptr + place_M[:, None] * D + d[None, :], out_MD, mask=live_MD)


def fits(num_tokens: int, num_heads: int, num_kv_heads: int) -> bool:
    """Whether so many tokens a row are few enough."""
    return num_tokens * num_heads // num_kv_heads <= MAX_QUERIES


def decode_attention(
    qkv: Tensor,
    rotary: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor, float] | None,
    slots_BS: Tensor,
    keys_NHD: Tensor,
    values_NHD: Tensor,
    page_table_BP: Tensor,
    start_B: Tensor,
    *,
    num_heads: int,
    page_size: int,
    window: int | None,
    first_B: Tensor | None = None,
    max_splits: int | None = None,
) -> Tensor:
    """Stores the new keys and values, and attends: [B, S, H·D], causal softmax with scale 1/sqrt(D).

    Everything but `qkv` was written before the product that made it was launched.

    Args:
        qkv: [B, S, (H + 2N)·D], query, key and value heads in this order, contiguous; or its summands [C, B, S, …].
        rotary: cos and sin, [B, S, 1, D] each, the first half of sin negated.
        norms: weights of the query and key norms, and their epsilon; None if there are none.
        slots_BS: int64, contiguous: where the new tokens are stored.
        keys_NHD: one layer's keys for all slots, contiguous; values_NHD likewise.
        page_table_BP: int64, contiguous; it reaches every position that counts.
        start_B: int64 position of each row's first token.
        num_heads: H.
        page_size: slots a page.
        window: how many positions a token sees, its own among them; None is all.
        first_B: int64 lowest position that each row sees, None for 0; a token before it sees itself.
        max_splits: most splits of the past; None chooses by how many programs there are without.
    """
    B, S = slots_BS.shape
    N, D = keys_NHD.shape[1:]
    G, num_parts = num_heads // N, qkv.shape[0] if qkv.dim() == 4 else 1
    reach = page_table_BP.shape[1] * page_size
    walk = walk_of(B * N, D * keys_NHD.element_size(), reach, max_splits)
    splits = walk.splits
    out = torch.empty((B, S, num_heads * D), dtype=keys_NHD.dtype, device=qkv.device)
    parts, peaks, totals = room_for(out.view(B, S, num_heads, D), splits)
    cos, sin = rotary
    q_weight, k_weight, eps = norms if norms is not None else (cos, cos, 0.0)
    first = start_B if first_B is None else first_B
    block_d = max(16, triton.next_power_of_2(D))
    block_m = max(16, triton.next_power_of_2(G * S))
    # As many as fit into the tile of queries, so that one compilation serves several numbers of tokens.
    block_s = 1 if S == 1 else max(triton.next_power_of_2(S), block_m // triton.next_power_of_2(G))
    shared = {"WINDOW": window or 0, "HAS_FIRST": first_B is not None, "D": D, "BLOCK_D": block_d}
    shared |= {"BLOCK_T": BLOCK_T} | overlapped(qkv.device)
    _decode[(splits, N, B)](
        qkv,
        cos,
        sin,
        q_weight,
        k_weight,
        slots_BS,
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
        qkv.numel() // num_parts,
        eps,
        _LOG2_E * D**-0.5,
        PARTS=num_parts,
        NORMS=norms is not None,
        G=G,
        N=N,
        PAGE=page_size,
        SPLIT=splits > 1,
        BLOCK_M=block_m,
        BLOCK_S=block_s,
        PRECISION="ieee" if keys_NHD.dtype == torch.float32 else None,
        num_warps=WARPS,
        num_stages=walk.stages,
        **shared,
    )
    if splits > 1:
        shared |= {"H": num_heads, "SPLITS": splits, "BLOCK_C": min(16, splits), "LEAST": 0, "num_warps": 1}
        join[(B * S * num_heads,)](parts, peaks, totals, start_B, first, out, S, reach, **shared)
    return out
