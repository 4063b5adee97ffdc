"""Where top-k and top-p cut a row of logits: no sort, and every row is searched by many programs at once.

The lowest logit that is kept is searched among the ordered bits of float32, four bits a pass. A pass counts, or sums in
fixed point, what lies at or above 16 candidates, each program over its part of the row; the next pass adds the parts up
and goes on below the best candidate. The reference is `outpace.kernels.sample.truncate`.

Shapes: B rows, S positions a row, Q = B·S, V token ids, C parts of a row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

_BLOCK = 1024
_PART = 4096
"""Ids that a program looks at, at least."""
_MAX_PARTS = 32
_PASSES = 8
_LOWEST = -(2**31)


@triton.jit
def ordered(x):
    """int32 keys in the order of the float32 values."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _load(logits_ptr, v, end, temperature):
    """Logits after temperature; -inf past the end."""
    x = tl.load(logits_ptr + v, mask=v < end, other=float("-inf")).to(tl.float32)
    return tl.div_rn(x, temperature)


@triton.jit
def _peak_of_part(
    logits_ptr, temperature_ptr, peak_ptr, num_ids, per_part, num_positions, greedy_below, C: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    given = tl.load(temperature_ptr + place // num_positions)
    temperature = tl.where(given >= greedy_below, given, 1.0)
    end = tl.minimum((part + 1) * per_part, num_ids)
    peak = tl.full((), float("-inf"), tl.float32)
    for at in range(part * per_part, end, BLOCK):
        x = _load(logits_ptr + place * num_ids, at + tl.arange(0, BLOCK), end, temperature)
        peak = tl.maximum(peak, tl.max(x, 0))
    tl.store(peak_ptr + place * C + part, peak)


@triton.jit
def _best(low, need, sums_ptr, place, digit, C: tl.constexpr):
    """Where the next pass goes on: the highest candidate of the last pass that weighs enough."""
    c = tl.arange(0, 16)
    part = tl.arange(0, C)
    parts_C16 = tl.load(sums_ptr + (place * C + part[:, None]) * 16 + c[None, :])
    step = tl.full((), 1, tl.int64) << (28 - 4 * digit)
    enough = (c == 0) | (tl.sum(parts_C16, 0) >= need)
    return tl.max(tl.where(enough, low + c * step, low), 0)


@triton.jit
def _need(top_k, top_p, sums_ptr, place, C: tl.constexpr, COUNTS: tl.constexpr):
    """What must be kept: k ids, or a share of the weight of all, which the first pass has summed up."""
    if COUNTS:
        need = top_k
    else:
        total = tl.sum(tl.load(sums_ptr + (place * C + tl.arange(0, C)) * 16), 0)
        need = tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
    return need


@triton.jit(do_not_specialize=["num_positions", "num_places", "digit"])
def _sum_of_part(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    peak_ptr,
    floor_ptr,
    low_ptr,
    sums_ptr,
    num_ids,
    per_part,
    num_positions,
    num_places,
    digit,
    greedy_below,
    COUNTS: tl.constexpr,
    FIXED_POINT: tl.constexpr,
    LOWEST: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One pass over a part: how much weighs each of 16 candidates. Passes have their own places in `low` and `sums`."""
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row = place // num_positions
    given = tl.load(temperature_ptr + row)
    temperature = tl.where(given >= greedy_below, given, 1.0)
    peak = tl.max(tl.load(peak_ptr + place * C + tl.arange(0, C)), 0)
    floor = tl.load(floor_ptr + place)
    low = tl.full((), LOWEST, tl.int64)
    if digit > 0:
        need = _need(tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), sums_ptr, place, C, COUNTS)
        before = (digit - 1) * num_places + place
        low = _best(tl.load(low_ptr + before), need, sums_ptr, before, digit - 1, C)
    c = tl.arange(0, 16)
    candidate_C = low + c * (tl.full((), 1, tl.int64) << (28 - 4 * digit))
    sums_CV = tl.zeros((16, BLOCK), tl.int64)
    end = tl.minimum((part + 1) * per_part, num_ids)
    for at in range(part * per_part, end, BLOCK):
        v = at + tl.arange(0, BLOCK)
        x = _load(logits_ptr + place * num_ids, v, end, temperature)
        key = ordered(x).to(tl.int64)
        kept = (v < end) & (key >= floor)
        weight = kept.to(tl.int64) if COUNTS else tl.where(kept, (tl.exp(x - peak) * FIXED_POINT).to(tl.int64), 0)
        sums_CV += tl.where(key[None, :] >= candidate_C[:, None], weight[None, :], 0)
    tl.store(sums_ptr + ((digit * num_places + place) * C + part) * 16 + c, tl.sum(sums_CV, 1))
    tl.store(low_ptr + digit * num_places + place, low, mask=part == 0)


@triton.jit(do_not_specialize=["num_positions", "num_places"])
def _end(
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    floor_ptr,
    low_ptr,
    sums_ptr,
    num_ids,
    num_positions,
    num_places,
    greedy_below,
    COUNTS: tl.constexpr,
    PASSES: tl.constexpr,
    C: tl.constexpr,
    PDL: tl.constexpr,
):
    """After the last pass: raises the floor to what was found, in rows that ask for this cut."""
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = place // num_positions
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    asks = ((top_k > 0) & (top_k < num_ids)) if COUNTS else (top_p < 1.0)
    need = _need(top_k, top_p, sums_ptr, place, C, COUNTS)
    last: tl.constexpr = PASSES - 1
    before = last * num_places + place
    found = _best(tl.load(low_ptr + before), need, sums_ptr, before, last, C)
    if asks & (tl.load(temperature_ptr + row) >= greedy_below):
        tl.store(floor_ptr + place, tl.maximum(tl.load(floor_ptr + place), found))


def cut(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    *,
    greedy_below: float,
    fixed_point: float,
) -> tuple[Tensor, Tensor]:
    """Lowest kept key (`ordered` of a logit after temperature), int64 [B, S], and highest logits, float32 [B, S, C].

    Args:
        logits_BSV: contiguous, any float dtype.
        temperature_B: float32; rows below `greedy_below` are not cut.
        top_k_B: int64, 0 keeps all.
        top_p_B: float32.
        greedy_below: see above.
        fixed_point: scale of the summed probabilities.
    """
    B, S, V = logits_BSV.shape
    device, options = logits_BSV.device, overlapped(logits_BSV.device)
    C = triton.next_power_of_2(max(1, min(_MAX_PARTS, V // _PART)))
    per_part = triton.cdiv(V, C)
    peak_BSC = torch.empty((B, S, C), dtype=torch.float32, device=device)
    floor_BS = torch.full((B, S), _LOWEST, dtype=torch.int64, device=device)
    low = torch.empty((_PASSES, B * S), dtype=torch.int64, device=device)
    sums = torch.empty((_PASSES, B * S, C, 16), dtype=torch.int64, device=device)
    shared = {"C": C, **options}
    _peak_of_part[(B * S, C)](logits_BSV, temperature_B, peak_BSC, V, per_part, S, greedy_below, BLOCK=_BLOCK, **shared)
    asked = (temperature_B, top_k_B, top_p_B)
    for counts in (True, False):
        for digit in range(_PASSES):
            _sum_of_part[(B * S, C)](
                logits_BSV, *asked, peak_BSC, floor_BS, low, sums, V, per_part, S, B * S, digit, greedy_below,
                COUNTS=counts, FIXED_POINT=fixed_point, LOWEST=_LOWEST, BLOCK=_BLOCK, **shared,
            )  # fmt: skip
        _end[(B * S,)](*asked, floor_BS, low, sums, V, S, B * S, greedy_below, COUNTS=counts, PASSES=_PASSES, **shared)
    return floor_BS, peak_BSC
