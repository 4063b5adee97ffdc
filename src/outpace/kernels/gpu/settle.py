"""Acceptance and commit in one launch, and the boundary features in another.

Shapes: B rows of R, K drafts, S = K+1, W pending places, H hidden size.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.sample import uniform


@triton.jit
def _settle(
    rows_ptr,
    drafts_ptr,
    chosen_ptr,
    length_ptr,
    last_token_ptr,
    num_pending_ptr,
    pending_ptr,
    max_k_ptr,
    seed_ptr,
    chance_ptr,
    outcome_ptr,
    inert,
    max_positions,
    W,
    chance_stride,
    K: tl.constexpr,
    HAS_CHANCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + b)
    length = tl.load(length_ptr + row)
    s = tl.arange(0, BLOCK)
    chosen = tl.load(chosen_ptr + b * (K + 1) + s, mask=s <= K, other=-1)
    num_accepted = tl.zeros((), tl.int64)
    if K > 0:
        drafts = tl.load(drafts_ptr + b * K + s, mask=s < K, other=-1)
        limit = tl.minimum(tl.load(max_k_ptr + row), tl.maximum(max_positions - length, 0))
        if HAS_CHANCE:
            chance = tl.load(chance_ptr + row * chance_stride + s, mask=s < K, other=0.0)
            stands = uniform(tl.load(seed_ptr + row), length, s.to(tl.uint32)) < chance
        else:
            stands = drafts == chosen
        falls = (s >= K) | (s >= limit) | (stands == 0)
        num_accepted = tl.min(tl.where(falls, s, BLOCK), 0).to(tl.int64)
        if HAS_CHANCE:
            chosen = tl.where(s < num_accepted, drafts, chosen)
    last = tl.sum(tl.where(s == num_accepted, chosen, 0), 0)
    tl.store(length_ptr + row, tl.where(row == inert, 0, length + num_accepted + 1))
    tl.store(last_token_ptr + row, last)
    tl.store(num_pending_ptr + row, num_accepted + 1)
    if K > 0:
        tl.store(pending_ptr + row * W + s, chosen, mask=s <= K)
    tl.store(outcome_ptr + b * (K + 2), num_accepted + 1)
    tl.store(outcome_ptr + b * (K + 2) + 1 + s, chosen, mask=s <= K)


def settle(
    rows_B: Tensor,
    drafts_BK: Tensor | None,
    chosen_BS: Tensor,
    *,
    length_R: Tensor,
    last_token_R: Tensor,
    num_pending_R: Tensor,
    pending_tokens_RW: Tensor,
    max_k_R: Tensor,
    seed_R: Tensor,
    chance_RK: Tensor | None,
    max_positions: int,
) -> Tensor:
    """`outpace.kernels.accept.settle` with its ledger's tensors."""
    B, S = chosen_BS.shape
    outcome_BC = torch.empty((B, S + 1), dtype=torch.int64, device=chosen_BS.device)
    _settle[(B,)](
        rows_B,
        chosen_BS if drafts_BK is None else drafts_BK,
        chosen_BS,
        length_R,
        last_token_R,
        num_pending_R,
        pending_tokens_RW,
        max_k_R,
        seed_R,
        length_R if chance_RK is None else chance_RK,
        outcome_BC,
        len(length_R) - 1,
        max_positions,
        pending_tokens_RW.shape[1],
        0 if chance_RK is None else chance_RK.shape[1],
        K=S - 1,
        HAS_CHANCE=chance_RK is not None,
        BLOCK=max(2, triton.next_power_of_2(S)),
        num_warps=1,
    )
    return outcome_BC


@triton.jit
def _keep_boundaries(fused_ptr, slot_ptr, boundary_ptr, H, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + place)
    if slot % PAGE == PAGE - 1:
        for at in range(0, H, BLOCK):
            h = at + tl.arange(0, BLOCK)
            feature = tl.load(fused_ptr + place * H + h, mask=h < H, other=0.0)
            tl.store(boundary_ptr + slot // PAGE * H + h, feature, mask=h < H)


def keep_boundaries(boundary_PH: Tensor, fused_BSH: Tensor, slots_BS: Tensor, page_size: int) -> None:
    """Features of tokens that complete a page become the page's; `fused_BSH` is contiguous."""
    H = boundary_PH.shape[1]
    block = min(2048, triton.next_power_of_2(H))
    _keep_boundaries[(slots_BS.numel(),)](fused_BSH, slots_BS, boundary_PH, H, PAGE=page_size, BLOCK=block, num_warps=4)
