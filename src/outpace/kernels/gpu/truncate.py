"""Where top-k and top-p cut a row of logits, found in a few passes over it: no sort, no memory of its own.

The lowest logit that is kept is searched among the ordered bits of float32, four bits a pass: a pass counts, or sums in
fixed point, what lies above 15 candidates at once. The reference is `outpace.kernels.sample.truncate`.

Shapes: B rows, S positions a row, V token ids.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

_BLOCK = 4096
_LOWEST = -(2**31)


@triton.jit
def ordered(x):
    """int32 keys in the order of the float32 values."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weights(x, peak, kept, FIXED_POINT: tl.constexpr, COUNTS: tl.constexpr):
    """What a logit weighs: 1, or its probability relative to the best one's, in fixed point."""
    if COUNTS:
        return kept.to(tl.int64)
    return tl.where(kept, (tl.exp(x - peak) * FIXED_POINT).to(tl.int64), 0)


@triton.jit
def _lowest_kept(
    logits_ptr, num_ids, temperature, peak, low, need, floor, FIXED_POINT: tl.constexpr, COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Largest key t for which all keys ≥ t and ≥ `floor` weigh at least `need`; it lies in `low` … low + 2^32 - 1."""
    c = tl.arange(0, 16)
    for digit in range(8):
        step = tl.full((), 1, tl.int64) << (28 - 4 * digit)
        candidate_C = low + c * step
        sum_C = tl.zeros((16,), tl.int64)
        for at in range(0, num_ids, BLOCK):
            v = at + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(logits_ptr + v, mask=v < num_ids, other=float("-inf")).to(tl.float32), temperature)
            key = ordered(x).to(tl.int64)
            weight = _weights(x, peak, (v < num_ids) & (key >= floor), FIXED_POINT, COUNTS)
            for place in tl.static_range(1, 16):
                above = tl.sum(tl.where(key >= low + place * step, weight, 0), 0)
                sum_C += tl.where(c == place, above, 0)
        enough_C = (c == 0) | (sum_C >= need)
        low = tl.max(tl.where(enough_C, candidate_C, low), 0)
    return low


@triton.jit
def _cut(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    cut_ptr,
    peak_ptr,
    num_ids,
    num_positions,
    greedy_below,
    FIXED_POINT: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = place // num_positions
    logits_ptr += place * num_ids
    given = tl.load(temperature_ptr + row)
    sampled = given >= greedy_below
    temperature = tl.where(sampled, given, 1.0)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    lowest = tl.full((), LOWEST, tl.int64)
    cut = lowest
    peak = tl.full((), float("-inf"), tl.float32)
    for at in range(0, num_ids, BLOCK):
        v = at + tl.arange(0, BLOCK)
        x = tl.div_rn(tl.load(logits_ptr + v, mask=v < num_ids, other=float("-inf")).to(tl.float32), temperature)
        peak = tl.maximum(peak, tl.max(x, 0))
    if sampled & (top_k > 0) & (top_k < num_ids):
        cut = _lowest_kept(logits_ptr, num_ids, temperature, peak, lowest, top_k, lowest, FIXED_POINT, True, BLOCK)
    if sampled & (top_p < 1.0):
        total = tl.zeros((), tl.int64)
        for at in range(0, num_ids, BLOCK):
            v = at + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(logits_ptr + v, mask=v < num_ids, other=float("-inf")).to(tl.float32), temperature)
            kept = (v < num_ids) & (ordered(x).to(tl.int64) >= cut)
            total += tl.sum(_weights(x, peak, kept, FIXED_POINT, False), 0)
        need = tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
        nucleus = _lowest_kept(logits_ptr, num_ids, temperature, peak, lowest, need, cut, FIXED_POINT, False, BLOCK)
        cut = tl.maximum(cut, nucleus)
    tl.store(cut_ptr + place, cut.to(tl.int32))
    tl.store(peak_ptr + place, peak)


def cut(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    *,
    greedy_below: float,
    fixed_point: float,
) -> tuple[Tensor, Tensor]:
    """Lowest kept key (`ordered` of a logit after temperature) and highest logit after temperature, [B, S] each.

    Args:
        logits_BSV: contiguous, any float dtype.
        temperature_B: float32; rows below `greedy_below` are not cut.
        top_k_B: int64, 0 keeps all.
        top_p_B: float32.
        greedy_below: see above.
        fixed_point: scale of the summed probabilities.
    """
    B, S, V = logits_BSV.shape
    cut_BS = torch.empty((B, S), dtype=torch.int32, device=logits_BSV.device)
    peak_BS = torch.empty((B, S), dtype=torch.float32, device=logits_BSV.device)
    _cut[(B * S,)](
        logits_BSV,
        temperature_B,
        top_k_B,
        top_p_B,
        cut_BS,
        peak_BS,
        V,
        S,
        greedy_below,
        FIXED_POINT=fixed_point,
        LOWEST=_LOWEST,
        BLOCK=_BLOCK,
        num_warps=16,
        **overlapped(logits_BSV.device),
    )
    return cut_BS, peak_BS
