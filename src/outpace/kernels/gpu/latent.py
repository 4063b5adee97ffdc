"""Latent attention of a few tokens a row, absorbed: one KV head for all query heads, whose value is part of its key.

A program takes some of a row's queries, all heads and tokens counted through, against one split of its past, and reads
every latent once for both products. The turned part of the queries is turned on the way. `splits.join` joins splits.

Shapes: B rows, S tokens a row, P pages a row, N query heads, R rank of the latent, D turned dimensions, E = R + D.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.rope import turned
from outpace.kernels.gpu.softmax import soften
from outpace.kernels.gpu.splits import join, room_for, span
from outpace.kernels.gpu.walk import splits_within

_LOG2_E = 1.4426950408889634
_BLOCK_T = 32
"""Positions of the past that a program reads at a time."""
_MAX_ROWS = 64
"""Queries of a program at most."""
_MAX_SPLITS = 64
_PROGRAMS = 264


@triton.jit(do_not_specialize=["num_tokens", "num_pages"])
def _attend_latent(
    absorbed_ptr,
    turned_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    table_ptr,
    start_ptr,
    first_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    num_tokens,
    num_pages,
    turned_stride,
    scale,
    N: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    split, num_splits = tl.program_id(0), tl.num_programs(0)
    row = tl.program_id(2).to(tl.int64)
    kind: tl.constexpr = cache_ptr.dtype.element_ty
    E: tl.constexpr = R + D
    wait(PDL)
    start = tl.load(start_ptr + row).to(tl.int32)
    first = tl.load(first_ptr + row).to(tl.int32) if HAS_FIRST else 0
    low, high, origin, share = span(start, first, num_tokens, num_pages * PAGE, 0, num_splits, BLOCK_T, 0)
    begin = tl.maximum(origin + split * share, low)
    end = tl.minimum(origin + (split + 1) * share, high)
    if SPLIT and begin >= end:
        return  # the row is too short for so many splits
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    token_M = m // N
    live_M = token_M < num_tokens
    own_M = start + token_M
    low_M = tl.minimum(own_M, first)
    r, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    real_R, real_D = r < R, d < D
    query_M = row * num_tokens * N + m
    q_MR = tl.load(absorbed_ptr + query_M[:, None] * R + r[None, :], mask=live_M[:, None] & real_R[None, :], other=0.0)
    live_MD = live_M[:, None] & real_D[None, :]
    heads_M, angles_M = query_M * turned_stride, (row * num_tokens + token_M) * D
    q_MD = turned(turned_ptr, heads_M, cos_ptr, sin_ptr, angles_M, d, live_MD, D).to(kind)

    table_row = table_ptr + row * num_pages
    peak_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total_M = tl.zeros((BLOCK_M,), tl.float32)
    out_MR = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for at in range(begin, end, BLOCK_T):
        t = at + tl.arange(0, BLOCK_T)
        inside_T = t < end
        page_T = tl.load(table_row + t // PAGE, mask=inside_T, other=0)
        slot_T = (page_T * PAGE + t % PAGE) * E
        latent_TR = tl.load(
            cache_ptr + slot_T[:, None] + r[None, :], mask=inside_T[:, None] & real_R[None, :], other=0.0
        )
        key_TD = tl.load(
            cache_ptr + slot_T[:, None] + R + d[None, :], mask=inside_T[:, None] & real_D[None, :], other=0.0
        )
        score_MT = tl.dot(q_MR, latent_TR.T, input_precision=PRECISION)
        score_MT = tl.dot(q_MD, key_TD.T, score_MT, input_precision=PRECISION) * scale
        seen_MT = inside_T[None, :] & (t[None, :] <= own_M[:, None]) & (t[None, :] >= low_M[:, None])
        score_MT = tl.where(seen_MT, score_MT, float("-inf"))
        weight_MT, fade_M, peak_M, total_M = soften(score_MT, peak_M, total_M)
        out_MR = tl.dot(weight_MT.to(kind), latent_TR, out_MR * fade_M[:, None], input_precision=PRECISION)

    live_MR = live_M[:, None] & real_R[None, :]
    if not SPLIT:
        out_MR = out_MR / tl.where(total_M == 0.0, 1.0, total_M)[:, None]
        tl.store(out_ptr + query_M[:, None] * R + r[None, :], out_MR.to(kind), mask=live_MR)
    else:
        place_M = query_M * num_splits + split
        tl.store(peak_ptr + place_M, peak_M, mask=live_M)
        tl.store(total_ptr + place_M, total_M, mask=live_M)
        tl.store(out_ptr + place_M[:, None] * R + r[None, :], out_MR, mask=live_MR)


def latent_attention(
    absorbed_BSNR: Tensor,
    turned_BSND: Tensor,
    rotary: tuple[Tensor, Tensor],
    cache_NE: Tensor,
    page_table_BP: Tensor,
    start_B: Tensor,
    *,
    scale: float,
    page_size: int,
    max_splits: int | None = None,
    first_B: Tensor | None = None,
) -> Tensor:
    """Attention over latents, [B, S, N, R]: causal softmax with a scale of its own.

    Args:
        absorbed_BSNR: queries in the latents' space, contiguous.
        turned_BSND: the queries' part that is still to be turned; its heads are evenly spaced.
        rotary: cos and sin, [B, S, 1, D] each, the first half of sin negated.
        cache_NE: one layer's latents with the turned keys behind, contiguous; the S tokens' are stored already.
        page_table_BP: int64, contiguous.
        start_B: int64 position of each row's first token.
        scale: of the scores.
        page_size: slots a page.
        max_splits: most splits of the past; None chooses by how many programs there are without.
        first_B: int64 lowest position that each row sees, None for 0; a token before it sees itself.
    """
    has_first, first_B = first_B is not None, start_B if first_B is None else first_B
    B, S, N, R = absorbed_BSNR.shape
    D = turned_BSND.shape[-1]
    block_m = min(_MAX_ROWS, max(16, triton.next_power_of_2(S * N)))
    num_tiles = triton.cdiv(S * N, block_m)
    reach = page_table_BP.shape[1] * page_size
    if max_splits is None:
        max_splits = min(_PROGRAMS // (B * num_tiles), _MAX_SPLITS, reach // _BLOCK_T)
    splits = splits_within(max_splits)
    out_BSNR = torch.empty_like(absorbed_BSNR)
    parts, peaks, totals = room_for(out_BSNR, splits)
    block_r, options = triton.next_power_of_2(R), overlapped(out_BSNR.device)
    _attend_latent[(splits, num_tiles, B)](
        absorbed_BSNR,
        turned_BSND,
        *rotary,
        cache_NE,
        page_table_BP,
        start_B,
        first_B,
        parts,
        peaks,
        totals,
        S,
        page_table_BP.shape[1],
        turned_BSND.stride(2),
        scale * _LOG2_E,
        N=N,
        R=R,
        D=D,
        HAS_FIRST=has_first,
        PAGE=page_size,
        SPLIT=splits > 1,
        BLOCK_M=block_m,
        BLOCK_T=_BLOCK_T,
        BLOCK_R=block_r,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        PRECISION="ieee" if cache_NE.dtype == torch.float32 else None,
        num_warps=8,
        **options,
    )
    if splits > 1:
        join[(B * S * N,)](
            parts,
            peaks,
            totals,
            start_B,
            first_B,
            out_BSNR,
            S,
            reach,
            WINDOW=0,
            HAS_FIRST=has_first,
            H=N,
            D=R,
            SPLITS=splits,
            BLOCK_C=min(8, splits),
            BLOCK_T=_BLOCK_T,
            LEAST=0,
            BLOCK_D=block_r,
            num_warps=4,
            **options,
        )
    return out_BSNR
