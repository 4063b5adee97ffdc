"""Where a row's past is cut into splits, so that few rows still fill the GPU, and how their softmaxes are joined.

For few tokens splits begin at fixed positions, so that a token's output does not depend on how many tokens of its row
run beside it; their size depends on the number of rows and, by powers of two, on the length. For many tokens, whose
programs take longer, all splits are of one size, so that none is waited for; it depends on where the row's tokens
begin, and on how many they are when they are filled up to a power of two.

Shapes: C splits, D head dimension.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, wait


def room_for(out: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where programs write the parts of an output [..., D], and each part's peak and total, in float32.

    With one split that is the output itself, and peaks and totals are neither written nor read.
    """
    if splits == 1:
        return out, out, out
    *queries, D = out.shape
    parts = torch.empty((*queries, splits, D), dtype=torch.float32, device=out.device)
    peaks = torch.empty((*queries, splits), dtype=torch.float32, device=out.device)
    return parts, peaks, torch.empty_like(peaks)


@triton.jit
def span(
    start,
    first,
    num_tokens,
    num_places,
    WINDOW: tl.constexpr,
    num_splits,
    BLOCK_T: tl.constexpr,
    LEAST: tl.constexpr,
):
    """(first position read, one past the last, where the first split begins, positions a split) of a row.

    LEAST is how many positions an even split has at least, a multiple of BLOCK_T; 0 is splits at fixed positions.
    """
    begin = tl.minimum(start, first)
    if WINDOW > 0:
        begin = tl.maximum(begin, start - WINDOW + 1)
    begin = begin // BLOCK_T * BLOCK_T
    end = tl.minimum(start + num_tokens, num_places)
    if LEAST > 0:
        filled = tl.full((), 1, tl.int32)
        for _ in range(20):
            filled = tl.where(filled < num_tokens, filled * 2, filled)
        num_blocks = tl.cdiv(start + filled - begin, BLOCK_T)
        return begin, end, begin, tl.maximum(tl.cdiv(num_blocks, num_splits) * BLOCK_T, LEAST)
    share = tl.full((), BLOCK_T, tl.int32)
    for _ in range(20):
        share = tl.where(end - (begin & -share) > num_splits * share, share * 2, share)  # it is a power of two
    return begin, end, begin & -share, share


@triton.jit(do_not_specialize=["num_tokens"])
def join(
    part_ptr,
    peak_ptr,
    total_ptr,
    start_ptr,
    first_ptr,
    out_ptr,
    num_tokens,
    num_places,
    WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_T: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """The softmax over all splits of one query: each part counts by its peak and total."""
    launch_next(PDL)
    query = tl.program_id(0).to(tl.int64)
    row = query // (num_tokens * H)
    start = tl.load(start_ptr + row).to(tl.int32)
    first = tl.load(first_ptr + row).to(tl.int32) if HAS_FIRST else 0
    _, high, origin, share = span(start, first, num_tokens, num_places, WINDOW, SPLITS, BLOCK_T, LEAST)
    num_live = tl.cdiv(high - origin, share)
    all_C = tl.arange(0, SPLITS)
    d = tl.arange(0, BLOCK_D)
    place = query * SPLITS
    wait(PDL)
    peak_C = tl.load(peak_ptr + place + all_C, mask=all_C < num_live, other=float("-inf"))
    total_C = tl.load(total_ptr + place + all_C, mask=all_C < num_live, other=0.0)
    peak = tl.max(peak_C, 0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(peak_C - peak) * total_C, 0)
    out_D = tl.zeros((BLOCK_D,), tl.float32)
    for at in range(0, num_live, BLOCK_C):
        c = at + tl.arange(0, BLOCK_C)
        share_C = tl.exp2(tl.load(peak_ptr + place + c, mask=c < num_live, other=float("-inf")) - peak)
        live_CD = (c < num_live)[:, None] & (d < D)[None, :]
        part_CD = tl.load(part_ptr + (place + c)[:, None] * D + d[None, :], mask=live_CD, other=0.0)
        out_D += tl.sum(share_C[:, None] * part_CD, 0)
    out_D = out_D / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + query * D + d, out_D.to(out_ptr.dtype.element_ty), mask=d < D)
