"""Choosing tokens in one pass over the logits: noise is computed where it is added and never stored.

The hash and the noise are those of `kernels/sample.py`, in 32-bit lanes. A row of logits is cut into splits, so that
few rows still fill the GPU; a second kernel takes the best of them.

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
from outpace.kernels.gpu.truncate import ordered

_BLOCK = 2048
_PROGRAMS = 528
"""Four on each of 132 multiprocessors."""
_MIN_SPLITS, _MAX_SPLITS = 8, 64


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def keys(seed, position):
    """What (seed, position) makes of the hash: a key and a salt."""
    low = _mix((seed & 0xFFFFFFFF).to(tl.uint32))
    high = _mix(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ 0x5BD1E995)
    key = _mix((position & 0xFFFFFFFF).to(tl.uint32) + low)
    return key, _mix(key ^ high)


@triton.jit
def noise(key, salt, ids):
    """Uniform noise, never 0 and never 1; `outpace.kernels.sample.uniform`."""
    x = _mix(_mix(ids ^ key) + salt)
    return ((x >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def uniform(seed, position, ids):
    """Uniform noise of (seed, position, id)."""
    key, salt = keys(seed, position)
    return noise(key, salt, ids)


@triton.jit(do_not_specialize=["num_positions", "ahead"])
def _best_of_split(
    logits_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    cut_ptr,
    peak_ptr,
    min_p_ptr,
    ids_ptr,
    score_ptr,
    index_ptr,
    num_ids,
    num_positions,
    ahead,
    greedy_below,
    HAS_IDS: tl.constexpr,
    SAMPLED: tl.constexpr,
    CUT: tl.constexpr,
    PEAKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    split, num_splits = tl.program_id(1), tl.num_programs(1)
    row = place // num_positions
    key = tl.zeros((), tl.uint32)
    salt = tl.zeros((), tl.uint32)
    temperature = 1.0
    noisy = False
    if SAMPLED:
        given = tl.load(temperature_ptr + row)
        noisy = given >= greedy_below
        temperature = tl.where(noisy, given, 1.0)
        key, salt = keys(tl.load(seed_ptr + row), tl.load(position_ptr + place) + ahead)
    if CUT:
        lowest = tl.load(cut_ptr + place)
        peak = tl.max(tl.load(peak_ptr + place * PEAKS + tl.arange(0, PEAKS)), 0)
        min_p = tl.load(min_p_ptr + row)
    share = tl.cdiv(tl.cdiv(num_ids, BLOCK), num_splits) * BLOCK
    begin = split * share
    best = float("-inf")
    best_at = begin.to(tl.int64)
    for at in range(begin, tl.minimum(begin + share, num_ids), BLOCK):
        v = at + tl.arange(0, BLOCK)
        real = v < num_ids
        score = tl.load(logits_ptr + place * num_ids + v, mask=real, other=float("-inf")).to(tl.float32)
        if SAMPLED:
            score = tl.div_rn(score, temperature)
            if CUT:
                kept = (ordered(score) >= lowest) & (tl.exp(score - peak) >= min_p)
                score = tl.where(kept | (noisy == 0), score, float("-inf"))
            ids = tl.load(ids_ptr + v, mask=real, other=0).to(tl.uint32) if HAS_IDS else v.to(tl.uint32)
            score = tl.where(noisy, score - tl.log(-tl.log(noise(key, salt, ids))), score)
        score = tl.where(real, score, float("-inf"))
        top, top_at = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
        better = top > best
        best_at = tl.where(better, (at + top_at).to(tl.int64), best_at)
        best = tl.where(better, top, best)
    tl.store(score_ptr + place * num_splits + split, best)
    tl.store(index_ptr + place * num_splits + split, best_at)


@triton.jit
def _best_of_all(
    score_ptr,
    index_ptr,
    ids_ptr,
    out_ptr,
    HAS_IDS: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    score = tl.load(score_ptr + place * SPLITS + tl.arange(0, SPLITS))
    _, at = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    best = tl.load(index_ptr + place * SPLITS + at)
    tl.store(out_ptr + place, tl.load(ids_ptr + best) if HAS_IDS else best)


def _splits(num_places: int, num_ids: int) -> int:
    """Into how many splits each row of logits is cut: a power of two, since each number is a compilation of what finds
    the best of them."""
    splits = _MIN_SPLITS
    while splits < _MAX_SPLITS and 2 * splits * num_places <= _PROGRAMS:
        splits *= 2
    num_blocks: int = triton.next_power_of_2(triton.cdiv(num_ids, _BLOCK))
    return min(splits, num_blocks)


def choose(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    position_BS: Tensor,
    ids_V: Tensor | None,
    *,
    sampled: bool,
    greedy_below: float,
    ahead: int = 0,
    cut: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Each position's token, int64 [B, S]: the argmax of logits / temperature plus noise.

    Args:
        logits_BSV: contiguous, any float dtype.
        temperature_B: float32.
        seed_B: int64.
        position_BS: int64, contiguous; of the tokens to be chosen, less `ahead`.
        ids_V: int64 target ids that the V logits stand for, ascending; None means 0 … V-1.
        sampled: some row has a temperature; otherwise all are greedy.
        greedy_below: temperatures below take the argmax of the logits.
        ahead: added to the positions.
        cut: what sampling leaves out: `truncate.cut`'s two results and min_p_B; None leaves out nothing.
    """
    B, S, V = logits_BSV.shape
    splits = _splits(B * S, V)
    score = torch.empty((B * S, splits), dtype=torch.float32, device=logits_BSV.device)
    index = torch.empty((B * S, splits), dtype=torch.int64, device=logits_BSV.device)
    out_BS = torch.empty((B, S), dtype=torch.int64, device=logits_BSV.device)
    options = overlapped(logits_BSV.device)
    lowest_BS, peak_BSC, min_p_B = cut if cut is not None else (index, score, temperature_B)
    _best_of_split[(B * S, splits)](
        logits_BSV,
        temperature_B,
        seed_B,
        position_BS,
        lowest_BS,
        peak_BSC,
        min_p_B,
        index if ids_V is None else ids_V,
        score,
        index,
        V,
        S,
        ahead,
        greedy_below,
        HAS_IDS=ids_V is not None,
        SAMPLED=sampled,
        CUT=cut is not None,
        PEAKS=1 if cut is None else peak_BSC.shape[-1],
        BLOCK=_BLOCK,
        num_warps=8,
        **options,
    )
    _best_of_all[(B * S,)](
        score,
        index,
        index if ids_V is None else ids_V,
        out_BS,
        HAS_IDS=ids_V is not None,
        SPLITS=splits,
        num_warps=1,
        **options,
    )
    return out_BS
