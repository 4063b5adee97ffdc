"""Packed experts for few tokens: `mixture`'s two launches, over weights that stay packed until they are in registers.

Time follows the bytes of the experts that somebody chose: each is read once for all of its tokens. Gate and up are
split over the inputs, a warp of a program for each, so that eight experts cut over eight ranks keep a whole GPU busy.
How many splits there are depends on the weights' shape alone, and a pair's result not on what else was chosen.

Shapes: T tokens, H hidden, E experts, C experts a token, P = T·C pairs (pair p is token p // C), I intermediate size,
M rows of a tile, N outputs of one; S splits, and for all of them together R outputs and L rows.
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
from outpace.kernels.gpu.fragments import add_loaded, behind, load_block
from outpace.kernels.gpu.routing import Groups, group_pairs
from outpace.kernels.gpu.walk import MULTIPROCESSORS
from outpace.kernels.packed import PackedWeight

_ROWS = 8
"""Pairs of a tile: few tokens share an expert."""
_OUTPUTS, _DOWN_OUTPUTS = 8, 16
"""Of a tile: so many of gate and of up, and of down."""
_WARPS = 1056
"""As many as splits are made for when a token's experts, eight of them, are all there is."""
_MAX_SPLITS = 4
_FEW_TOKENS = 8
"""Up to here a program of the down product goes through 4 tiles, beyond through 8: enough programs, then few starts."""
_REGISTERS, _FEW_REGISTERS, _OF_ALL_THREADS = 72, 64, 65536
"""Of a thread: what gate and up take and down is held to, and what gate and up can be held to; of a multiprocessor."""
_FEW_ROUNDS = 3
"""One less of these makes up for what few registers cost."""


@triton.jit
def _pairs(pair_ptr, m):
    """Of a group's pairs those at some places, and whether there are such: behind the last the first comes again."""
    pair = tl.load(pair_ptr + m)
    real = pair >= 0
    return tl.where(real, pair, tl.load(pair_ptr)).to(tl.int64), real


@triton.jit
def _gate_up(
    x_ptr,
    word_ptr,
    scale_ptr,
    zero_ptr,
    expert_ptr,
    pair_ptr,
    out_ptr,
    width,
    num_inputs,
    C: tl.constexpr,
    BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr,
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """silu(gate x) · up x of one expert's pairs, for a tile of outputs; each warp has a split of the inputs."""
    wait(PDL)
    launch_next(PDL)  # not before: down reads groups ahead of its own wait
    tile, group = tl.program_id(0), tl.program_id(1)
    expert = tl.load(expert_ptr + group).to(tl.int64)
    m, r = tl.arange(0, SPLITS * M), tl.arange(0, SPLITS * BLOCK_N)
    pair_L, _ = _pairs(pair_ptr + group * M, m % M)
    if expert >= 0:
        kind: tl.constexpr = x_ptr.dtype.element_ty
        SCALES: tl.constexpr = 4 if BITS == 4 else 1
        BLOCK: tl.constexpr = 256 if BITS == 4 else 128
        tall = 2 * width  # gate's rows, and up's behind them
        first = expert * BLOCKS * tall
        words, scales, zeros = word_ptr + first * 32, scale_ptr + first * SCALES, zero_ptr + first * SCALES
        up_words, up_scales, up_zeros = words + width * 32, scales + width, zeros + width
        share: tl.constexpr = BLOCKS // SPLITS
        row_R, begin_R = tl.minimum(tile * BLOCK_N + r % BLOCK_N, width - 1), r // BLOCK_N * share
        x_L, begin_L = x_ptr + (pair_L // C) * num_inputs, m // M * share * BLOCK
        sum_SRM = tl.zeros((SPLITS, 2 * BLOCK_N, M), tl.float32)
        gate = load_block(words, scales, zeros, row_R, begin_R, tall, True, BITS, HAS_ZEROS)
        up = load_block(up_words, up_scales, up_zeros, row_R, begin_R, tall, True, BITS, HAS_ZEROS)
        for step in tl.range(0, share, num_stages=1, loop_unroll_factor=2):
            then_R, more = begin_R + step + 1, step + 1 < share
            next_gate = load_block(words, scales, zeros, row_R, then_R, tall, more, BITS, HAS_ZEROS)
            next_up = load_block(up_words, up_scales, up_zeros, row_R, then_R, tall, more, BITS, HAS_ZEROS)
            both = behind(gate, up, SPLITS, BITS, HAS_ZEROS)
            first_L = begin_L + step * BLOCK
            sum_SRM = add_loaded(sum_SRM, both, x_L, first_L, num_inputs, BITS, HAS_ZEROS, EVEN)
            gate, up = next_gate, next_up
        sum_RM = tl.sum(sum_SRM, 0)
        gate_NM, up_NM = tl.split(tl.permute(tl.reshape(sum_RM, (2, BLOCK_N, M)), (1, 2, 0)))
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        pair_M, real_M = _pairs(pair_ptr + group * M, tl.arange(0, M))
        out_NM = out_ptr + pair_M[None, :] * width + n[:, None]
        tl.store(out_NM, silu_times(gate_NM, up_NM, kind).to(kind), mask=(n < width)[:, None] & real_M[None, :])


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
    num_tokens,
    C: tl.constexpr,
    BLOCKS: tl.constexpr,
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
    expert = tl.load(expert_ptr + group, cache_modifier=".cg").to(tl.int64)
    if expert >= 0:
        SCALES: tl.constexpr = 4 if BITS == 4 else 1
        of_expert = expert * BLOCKS * num_outputs
        words, scales = word_ptr + of_expert * 32, scale_ptr + of_expert * SCALES
        zeros = zero_ptr + of_expert * SCALES
        first = tl.program_id(0) * TILES
        n = first * BLOCK_N + tl.arange(0, BLOCK_N)
        last = num_outputs - 1
        BLOCK: tl.constexpr = 256 if BITS == 4 else 128
        begin_M = tl.zeros((M,), tl.int32)
        sum_SNM = tl.zeros((1, BLOCK_N, M), tl.float32)
        block = load_block(words, scales, zeros, tl.minimum(n, last), 0, num_outputs, True, BITS, HAS_ZEROS)
        wait(PDL)
        pair_M, real_M = _pairs(pair_ptr + group * M, tl.arange(0, M))
        score_M = tl.load(score_ptr + pair_M)
        out_M = (pair_M % C * num_tokens + pair_M // C) * num_outputs
        x_M = x_ptr + pair_M * width
        for step in tl.range(0, TILES * BLOCKS, num_stages=1, loop_unroll_factor=2):
            at, then = step % BLOCKS, step + 1
            row_N, more = tl.minimum(n + then // BLOCKS * BLOCK_N, last), then < TILES * BLOCKS
            ahead = load_block(words, scales, zeros, row_N, then % BLOCKS, num_outputs, more, BITS, HAS_ZEROS)
            first_M = begin_M + at * BLOCK
            sum_SNM = add_loaded(sum_SNM, block, x_M, first_M, width, BITS, HAS_ZEROS, EVEN)
            block = ahead
            if at == BLOCKS - 1:
                n_now = n + step // BLOCKS * BLOCK_N
                sum_NM = tl.reshape(sum_SNM, (BLOCK_N, M)) * score_M[None, :]
                there_NM = (n_now < num_outputs)[:, None] & real_M[None, :]
                tl.store(out_ptr + out_M[None, :] + n_now[:, None], sum_NM, mask=there_NM)
                sum_SNM = tl.zeros((1, BLOCK_N, M), tl.float32)
    else:
        wait(PDL)
    launch_next(PDL)


def splits_of(width: int, num_blocks: int) -> int:
    """Of the gate and up products' inputs, by their shape alone: a power of two, and of as many blocks each."""
    splits, alone = 1, 8 * triton.cdiv(width, _OUTPUTS)
    while splits < _MAX_SPLITS and num_blocks % (2 * splits) == 0 and 2 * splits * alone <= _WARPS:
        splits *= 2
    return splits


def _is_simple(weight: PackedWeight, num_inputs: int) -> bool:
    """Whether limits of registers were measured for it; no result depends on them."""
    return weight.words.is_cuda and weight.zeros is None and bool(weight.layout(num_inputs)["EVEN"])


def _gate_up_limit(num_programs: int, warps: int) -> dict[str, int]:
    """Few registers where more programs at a time, of so many warps, save one of few rounds."""

    def rounds(registers: int) -> int:
        return -(-num_programs // (_OF_ALL_THREADS // (registers * 32 * warps) * MULTIPROCESSORS))

    saves = rounds(_FEW_REGISTERS) < rounds(_REGISTERS) <= _FEW_ROUNDS
    return {"maxnreg": _FEW_REGISTERS} if saves else {}


def groups_packed(experts_TC: Tensor, num_experts: int, *, ahead: bool = False) -> Groups:
    """`group_pairs`, as `mixture_packed` wants them."""
    return group_pairs(experts_TC, num_experts, _ROWS, ahead=ahead)


def mixture_packed(
    x_TH: Tensor, groups: Groups, scores_TC: Tensor, gate_up: PackedWeight, down: PackedWeight, out_CTH: Tensor
) -> None:
    """Writes summands: score · down(silu(gate(x)) · up(x)) for each of a token's experts.

    Args:
        x_TH: contiguous, of the weights' type.
        groups: `groups_packed` of the tokens' experts.
        scores_TC: float32, contiguous.
        gate_up: [E, 2·I, H], gate's rows first.
        down: [E, H, I].
        out_CTH: float32, contiguous; what lies behind the C of a token's experts is left as it is.
    """
    (T, H), C, width = x_TH.shape, scores_TC.shape[1], down.num_inputs
    num_groups, splits = len(groups.expert_G), splits_of(width, gate_up.num_blocks)
    hidden_PI = torch.empty((T * C, width), dtype=x_TH.dtype, device=x_TH.device)
    assert groups.pair_GM.shape[1] == _ROWS
    shared = {"C": C, "M": _ROWS} | overlapped(x_TH.device)
    zeros = gate_up.scales if gate_up.zeros is None else gate_up.zeros
    tiles = triton.cdiv(width, _OUTPUTS)
    limit = _gate_up_limit(tiles * num_groups, splits) if _is_simple(gate_up, H) else {}
    _gate_up[(tiles, num_groups)](
        x_TH, gate_up.words, gate_up.scales, zeros, groups.expert_G, groups.pair_GM, hidden_PI,
        width, H, BLOCKS=gate_up.num_blocks, SPLITS=splits, BLOCK_N=_OUTPUTS, num_warps=splits,
        **limit, **gate_up.layout(H), **shared,
    )  # fmt: skip
    zeros = down.scales if down.zeros is None else down.zeros
    in_a_row = 4 if T <= _FEW_TOKENS else 8
    limit = {"maxnreg": _REGISTERS} if _is_simple(down, width) else {}
    _down[(triton.cdiv(H, _DOWN_OUTPUTS * in_a_row), num_groups)](
        hidden_PI, down.words, down.scales, zeros, scores_TC, groups.expert_G, groups.pair_GM, out_CTH, H, width,
        T, BLOCKS=down.num_blocks, TILES=in_a_row, BLOCK_N=_DOWN_OUTPUTS, num_warps=1,
        **limit, **down.layout(width), **shared,
    )  # fmt: skip
