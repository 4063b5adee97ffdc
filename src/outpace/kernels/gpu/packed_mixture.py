"""Packed experts for few tokens: `mixture`'s two launches, over weights that stay packed until they are in registers.

Time follows the bytes of the experts that somebody chose: each is read once for all of its tokens. Gate and up are
split over the inputs, so that eight experts cut over eight ranks keep a whole GPU busy; whichever split of a tile comes
last adds them up, in their order, so that a result has the same bits every time. How many splits there are depends on
the weights' shape alone, and a pair's result not on what else was chosen.

Shapes: T tokens, H hidden, E experts, C experts a token, P = T·C pairs (pair p is token p // C), I intermediate size,
M rows of a tile.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.activation import silu_times
from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.fragments import add_loaded, load_block
from outpace.kernels.gpu.routing import Groups, group_pairs
from outpace.kernels.packed import PackedWeight

_ROWS = 8
"""Pairs of a tile: few tokens share an expert."""
_OUTPUTS, _DOWN_OUTPUTS = 8, 16
"""Of a tile, a warp's: so many of gate and of up."""
_PROGRAMS = 1056
"""As many as splits are made for when a token's experts, eight of them, are all there is."""
_MAX_SPLITS = 4
_FEW_TOKENS = 8
"""Up to here a program of the down product goes through 4 tiles, beyond through 8: enough programs, then few starts."""


@triton.jit
def _rows(pair_ptr, group, M: tl.constexpr):
    """The pairs of a group, which of them there are, and what to read for the others."""
    pair_M = tl.load(pair_ptr + group * M + tl.arange(0, M)).to(tl.int64)
    live_M = pair_M >= 0
    return pair_M, live_M, tl.where(live_M, pair_M, tl.load(pair_ptr + group * M).to(tl.int64))


@triton.jit(do_not_specialize=["num_pairs"])
def _gate_up(
    x_ptr,
    word_ptr,
    scale_ptr,
    zero_ptr,
    expert_ptr,
    pair_ptr,
    count_ptr,
    part_ptr,
    out_ptr,
    width,
    num_inputs,
    num_blocks,
    num_pairs,
    C: tl.constexpr,
    SPLITS: tl.constexpr,
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """silu(gate x) · up x of one expert's pairs, for a tile of outputs and a split of the inputs."""
    wait(PDL)
    launch_next(PDL)  # not before: down reads groups and scores ahead of its own wait
    tile, split, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    expert = tl.load(expert_ptr + group).to(tl.int64)
    pair_M, live_M, row_M = _rows(pair_ptr, group, M)
    if expert >= 0:
        kind: tl.constexpr = x_ptr.dtype.element_ty
        x_M = x_ptr + (row_M // C) * num_inputs
        r = tl.arange(0, 2 * BLOCK_N)  # gate's, then up's
        row_R = tl.minimum(tile * BLOCK_N + r % BLOCK_N, width - 1) + r // BLOCK_N * width
        SCALES: tl.constexpr = 4 if BITS == 4 else 1
        first = expert * num_blocks * 2 * width
        words, scales, zeros = word_ptr + first * 32, scale_ptr + first * SCALES, zero_ptr + first * SCALES
        share = tl.cdiv(num_blocks, SPLITS)
        begin, end = split * share, tl.minimum((split + 1) * share, num_blocks)
        sum_RM = tl.zeros((2 * BLOCK_N, M), tl.float32)
        block = load_block(words, scales, zeros, row_R, begin, 2 * width, BITS, HAS_ZEROS)
        for at in tl.range(begin, end, num_stages=1):
            ahead = load_block(words, scales, zeros, row_R, tl.minimum(at + 1, end - 1), 2 * width, BITS, HAS_ZEROS)
            sum_RM = add_loaded(sum_RM, block, x_M, at, num_inputs, BITS, HAS_ZEROS, EVEN)
            block = ahead
        gate_NM, up_NM = tl.split(tl.permute(tl.reshape(sum_RM, (2, BLOCK_N, M)), (1, 2, 0)))
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        live_NM = (n < width)[:, None] & live_M[None, :]
        out_NM = out_ptr + pair_M[None, :] * width + n[:, None]
        if SPLITS == 1:
            tl.store(out_NM, silu_times(gate_NM, up_NM, kind).to(kind), mask=live_NM)
        else:
            stride = num_pairs.to(tl.int64) * 2 * width
            part_NM = part_ptr + pair_M[None, :] * 2 * width + n[:, None]
            tl.store(part_NM + split * stride, gate_NM, mask=live_NM)
            tl.store(part_NM + split * stride + width, up_NM, mask=live_NM)
            tl.debug_barrier()  # all threads have written before one of them says so
            done = tl.atomic_add(count_ptr + group * tl.num_programs(0) + tile, 1, sem="acq_rel")
            if done == SPLITS - 1:
                gate_NM = tl.load(part_NM, mask=live_NM, other=0.0, cache_modifier=".cg")
                up_NM = tl.load(part_NM + width, mask=live_NM, other=0.0, cache_modifier=".cg")
                for other in tl.static_range(1, SPLITS):
                    there_NM = part_NM + other * stride
                    gate_NM += tl.load(there_NM, mask=live_NM, other=0.0, cache_modifier=".cg")
                    up_NM += tl.load(there_NM + width, mask=live_NM, other=0.0, cache_modifier=".cg")
                tl.store(out_NM, silu_times(gate_NM, up_NM, kind).to(kind), mask=live_NM)


@triton.jit(do_not_specialize=["num_tokens"])
def _down(
    x_ptr,
    word_ptr,
    scale_ptr,
    zero_ptr,
    score_ptr,
    expert_ptr,
    pair_ptr,
    out_ptr,
    num_outputs,
    width,
    num_blocks,
    num_tokens,
    C: tl.constexpr,
    TILES: tl.constexpr,
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One expert's pairs to summands of their tokens, times their scores, for a few tiles of outputs one by one.

    Tiles and blocks are one loop: with few inputs a tile is one block, and the next one must be on its way. Groups are
    older than the product before, so the first weights do not wait for it.
    """
    group = tl.program_id(1)
    expert = tl.load(expert_ptr + group).to(tl.int64)
    pair_M, live_M, row_M = _rows(pair_ptr, group, M)
    if expert >= 0:
        score_M = tl.load(score_ptr + row_M)
        out_M = (pair_M % C * num_tokens + pair_M // C) * num_outputs
        x_M = x_ptr + row_M * width
        SCALES: tl.constexpr = 4 if BITS == 4 else 1
        of_expert = expert * num_blocks * num_outputs
        words, scales = word_ptr + of_expert * 32, scale_ptr + of_expert * SCALES
        zeros = zero_ptr + of_expert * SCALES
        first = tl.program_id(0) * TILES
        n = first * BLOCK_N + tl.arange(0, BLOCK_N)
        last = num_outputs - 1
        sum_NM = tl.zeros((BLOCK_N, M), tl.float32)
        block = load_block(words, scales, zeros, tl.minimum(n, last), 0, num_outputs, BITS, HAS_ZEROS)
        wait(PDL)
        for step in tl.range(0, TILES * num_blocks, num_stages=1):
            at, then = step % num_blocks, tl.minimum(step + 1, TILES * num_blocks - 1)
            row_N = tl.minimum(n + then // num_blocks * BLOCK_N, last)
            ahead = load_block(words, scales, zeros, row_N, then % num_blocks, num_outputs, BITS, HAS_ZEROS)
            sum_NM = add_loaded(sum_NM, block, x_M, at, width, BITS, HAS_ZEROS, EVEN)
            block = ahead
            if at == num_blocks - 1:
                n_now = n + step // num_blocks * BLOCK_N
                live_NM = (n_now < num_outputs)[:, None] & live_M[None, :]
                tl.store(out_ptr + out_M[None, :] + n_now[:, None], sum_NM * score_M[None, :], mask=live_NM)
                sum_NM = tl.zeros((BLOCK_N, M), tl.float32)
    else:
        wait(PDL)
    launch_next(PDL)


def splits_of(width: int, num_blocks: int) -> int:
    """Of the gate and up products' inputs, by their shape alone."""
    splits = 1
    while splits < _MAX_SPLITS and 8 * triton.cdiv(width, _OUTPUTS) * 2 * splits <= _PROGRAMS:
        splits *= 2
    share = -(-num_blocks // min(splits, num_blocks))
    return -(-num_blocks // share)


def groups_packed(experts_TC: Tensor, gate_up: PackedWeight, down: PackedWeight, *, ahead: bool = False) -> Groups:
    """`group_pairs`, as `mixture_packed` wants them."""
    tiles, splits = triton.cdiv(down.num_inputs, _OUTPUTS), splits_of(down.num_inputs, gate_up.num_blocks)
    return group_pairs(experts_TC, len(down.words), _ROWS, num_counts=tiles if splits > 1 else 0, ahead=ahead)


def mixture_packed(
    x_TH: Tensor,
    groups: Groups,
    scores_TC: Tensor,
    gate_up: PackedWeight,
    down: PackedWeight,
    out_CTH: Tensor,
) -> None:
    """Writes summands: score · down(silu(gate(x)) · up(x)) for each of a token's experts.

    Args:
        x_TH: contiguous, of the weights' type.
        groups: `groups_packed` of the tokens' experts, for this call alone.
        scores_TC: float32, contiguous.
        gate_up: [E, 2·I, H], gate's rows first.
        down: [E, H, I].
        out_CTH: float32, contiguous; what lies behind the C of a token's experts is left as it is.
    """
    (T, H), C, width, device = x_TH.shape, scores_TC.shape[1], down.num_inputs, x_TH.device
    tiles, blocks = triton.cdiv(width, _OUTPUTS), gate_up.num_blocks
    splits = splits_of(width, blocks)
    num_groups = len(groups.expert_G)
    hidden_PI = torch.empty((T * C, width), dtype=x_TH.dtype, device=device)
    parts = hidden_PI
    if splits > 1:
        parts = torch.empty((splits, T * C, 2 * width), dtype=torch.float32, device=device)
    shared = {"C": C, "M": _ROWS, "num_warps": 1} | overlapped(device)
    zeros = gate_up.scales if gate_up.zeros is None else gate_up.zeros
    _gate_up[(tiles, splits, num_groups)](
        x_TH, gate_up.words, gate_up.scales, zeros, groups.expert_G, groups.pair_GM, groups.count_G, parts, hidden_PI,
        width, H, blocks, T * C, SPLITS=splits, BLOCK_N=_OUTPUTS, **gate_up.layout(H), **shared,
    )  # fmt: skip
    zeros = down.scales if down.zeros is None else down.zeros
    in_a_row = 4 if T <= _FEW_TOKENS else 8
    _down[(triton.cdiv(H, _DOWN_OUTPUTS * in_a_row), num_groups)](
        hidden_PI, down.words, down.scales, zeros, scores_TC, groups.expert_G, groups.pair_GM, out_CTH,
        H, width, down.num_blocks, T, TILES=in_a_row, BLOCK_N=_DOWN_OUTPUTS, **down.layout(width), **shared,
    )  # fmt: skip
