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

_BLOCK = 2048
_PROGRAMS = 264
"""Two on each of 132 multiprocessors."""


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _best_of_split(
    logits_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    ids_ptr,
    score_ptr,
    index_ptr,
    num_ids,
    num_positions,
    row_stride,
    greedy_below,
    SPLITS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    row = place // num_positions
    key = tl.zeros((), tl.uint32)
    salt = tl.zeros((), tl.uint32)
    temperature = 1.0
    noisy = False
    if SAMPLED:
        given = tl.load(temperature_ptr + row)
        noisy = given >= greedy_below
        temperature = tl.where(noisy, given, 1.0)
        seed = tl.load(seed_ptr + row)
        low = _mix((seed & 0xFFFFFFFF).to(tl.uint32))
        high = _mix(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ 0x5BD1E995)
        position = (tl.load(position_ptr + place) & 0xFFFFFFFF).to(tl.uint32)
        key = _mix(position + low)
        salt = _mix(key ^ high)
    share = tl.cdiv(tl.cdiv(num_ids, BLOCK), SPLITS) * BLOCK
    begin = split * share
    best = float("-inf")
    best_at = begin.to(tl.int64)
    for at in range(begin, tl.minimum(begin + share, num_ids), BLOCK):
        v = at + tl.arange(0, BLOCK)
        real = v < num_ids
        score = tl.load(logits_ptr + place * row_stride + v, mask=real, other=float("-inf")).to(tl.float32)
        if SAMPLED:
            score = score / temperature
            ids = tl.load(ids_ptr + v, mask=real, other=0).to(tl.uint32) if HAS_IDS else v.to(tl.uint32)
            x = _mix(_mix(ids ^ key) + salt)
            uniform = ((x >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            score = tl.where(noisy, score - tl.log(-tl.log(uniform)), score)
        score = tl.where(real, score, float("-inf"))
        top, top_at = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
        better = top > best
        best_at = tl.where(better, (at + top_at).to(tl.int64), best_at)
        best = tl.where(better, top, best)
    tl.store(score_ptr + place * SPLITS + split, best)
    tl.store(index_ptr + place * SPLITS + split, best_at)


@triton.jit
def _best_of_all(score_ptr, index_ptr, out_ptr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    score = tl.load(score_ptr + place * SPLITS + c, mask=c < SPLITS, other=float("-inf"))
    _, at = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out_ptr + place, tl.load(index_ptr + place * SPLITS + at))


def choose(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    position_BS: Tensor,
    ids_V: Tensor | None,
    *,
    sampled: bool,
    greedy_below: float,
) -> Tensor:
    """Index into V of each position's token, int64 [B, S]: the argmax of logits / temperature plus noise.

    Args:
        logits_BSV: contiguous, any float dtype; what is left out of sampling is -inf.
        temperature_B: float32.
        seed_B: int64.
        position_BS: int64, contiguous.
        ids_V: int64 target ids that the V logits stand for; None means 0 … V-1.
        sampled: some row has a temperature; otherwise all are greedy.
        greedy_below: temperatures below take the argmax of the logits.
    """
    B, S, V = logits_BSV.shape
    splits = max(1, min(_PROGRAMS // (B * S), triton.cdiv(V, _BLOCK)))
    score = torch.empty((B * S, splits), dtype=torch.float32, device=logits_BSV.device)
    index = torch.empty((B * S, splits), dtype=torch.int64, device=logits_BSV.device)
    out_BS = torch.empty((B, S), dtype=torch.int64, device=logits_BSV.device)
    _best_of_split[(B * S, splits)](
        logits_BSV,
        temperature_B,
        seed_B,
        position_BS,
        position_BS if ids_V is None else ids_V,
        score,
        index,
        V,
        S,
        V,
        greedy_below,
        SPLITS=splits,
        HAS_IDS=ids_V is not None,
        SAMPLED=sampled,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    _best_of_all[(B * S,)](score, index, out_BS, SPLITS=splits, BLOCK=triton.next_power_of_2(splits), num_warps=1)
    return out_BS
