"""A mixture of experts for many tokens: products over tiles of one expert's tokens, nothing for the host to read.

Pairs are sorted by expert (`sorting`), and a tile of pairs is multiplied by a tile of its expert's weights, plain or
unpacked in registers: gate, up and SiLU, then down. Tiles of one expert lie beside each other, so that its weights come
from memory once and from the L2 cache afterwards. What down gives is rounded to the model's type, as separate products
would be, and then added up for each token, in the order of its experts, in float32. Tiles follow the number of pairs,
and for the same number a pair's result does not depend on what else was chosen.

The results of all pairs before they are added up would take more memory than anything else in a forward (8,192 tokens
of Kimi-K2: 0.94 GB), so down goes over the outputs in slices that stay under a bound. A slice has rows of every expert
to itself, so no weight is read twice for it.

Shapes: T tokens, H hidden, E experts, C experts a token, P = T·C pairs (pair p is token p // C), I intermediate size,
G tiles of up to M pairs, N outputs of a tile of weights.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.activation import silu_times
from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.packed import add_block
from outpace.kernels.gpu.sorting import Tiles, sort_pairs
from outpace.kernels.packed import PackedWeight

_MOST_PAIRS = {4: 64, 8: 64, 16: 128, 32: 32}
"""Of a tile, by the bits of a weight: with more, FP8's sums do not fit the registers, and INT4 is slower."""
_STAGES = {4: {8: 4, 16: 4, 32: 3, 64: 3, 128: 2}, 8: {8: 4, 16: 4, 32: 4, 64: 4}, 16: {16: 3, 32: 3, 64: 4, 128: 4}}
"""By these, and by pairs: how many blocks of inputs are on their way."""
_SLICE_BYTES = 1 << 28
"""What the results of all pairs may take before they are added up."""
_SLICE_STEP = 128
_ADDED = 1024
"""Outputs that are added up at a time."""


@triton.jit
def _plain_block(
    sum_NM, up_NM, x_M, weight_N, at, half, live_M, live_N, num_inputs, GATED: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `packed.add_block`, for weights that are not packed."""
    k = at + tl.arange(0, BLOCK_K)
    live_NK, live_MK = live_N[:, None], live_M[:, None]
    if not EVEN:
        live_NK, live_MK = live_NK & (k < num_inputs)[None, :], live_MK & (k < num_inputs)[None, :]
    x = tl.load(x_M[:, None] + k[None, :], mask=live_MK, other=0.0)
    weight = tl.load(weight_N[:, None] + k[None, :], mask=live_NK, other=0.0)
    sum_NM = tl.dot(weight, x.T, sum_NM, input_precision=PRECISION)
    if GATED:
        weight = tl.load(weight_N[:, None] + half * num_inputs + k[None, :], mask=live_NK, other=0.0)
        up_NM = tl.dot(weight, x.T, up_NM, input_precision=PRECISION)
    return sum_NM, up_NM


@triton.jit(do_not_specialize=["first", "num_tiles"])
def _multiply_tiles(
    x_ptr, weight_ptr, scale_ptr, zero_ptr, pair_ptr, expert_ptr, begin_ptr, end_ptr, out_ptr, first, size, num_rows,
    num_inputs, num_blocks, num_tiles, C: tl.constexpr, GATED: tl.constexpr, BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of pairs times one tile of their expert's weights: from tokens through gate and up, or from pairs.

    Args:
        first, size: the outputs that are wanted, of each half if there are two.
        num_rows: outputs of the whole weight, both halves counted.
        num_blocks: of its inputs, where it is packed.
        num_tiles: tiles of outputs.
    """
    wait(PDL)
    tile, group = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    expert = tl.load(expert_ptr + group).to(tl.int64)
    if expert >= 0:
        kind: tl.constexpr = out_ptr.dtype.element_ty
        place_M = tl.load(begin_ptr + group) + tl.arange(0, M)
        live_M = place_M < tl.load(end_ptr + group)
        pair_M = tl.load(pair_ptr + place_M, mask=live_M, other=0).to(tl.int64)
        x_M = x_ptr + (pair_M // C if GATED else pair_M) * num_inputs
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        live_N = n < size
        row_N = (first + n).to(tl.int64)
        sum_NM = tl.zeros((BLOCK_N, M), tl.float32)
        up_NM = tl.zeros((BLOCK_N, M), tl.float32)
        if BITS >= 16:
            weight_N = weight_ptr + (expert * num_rows + row_N) * num_inputs
            half = size.to(tl.int64)
            for at in tl.range(0, num_inputs, BLOCK_K, num_stages=STAGES):
                sum_NM, up_NM = _plain_block(
                    sum_NM, up_NM, x_M, weight_N, at, half, live_M, live_N, num_inputs, GATED, EVEN, BLOCK_K, PRECISION
                )
        else:
            SCALES: tl.constexpr = 4 if BITS == 4 else 1
            of_expert = expert * num_blocks * num_rows
            word_N = weight_ptr + of_expert * 32 + row_N * 32
            scale_N, zero_N = scale_ptr + of_expert * SCALES + row_N, zero_ptr + of_expert * SCALES + row_N
            for at in tl.range(0, num_blocks, num_stages=STAGES):
                sum_NM, up_NM = add_block(
                    sum_NM, up_NM, x_M, word_N, scale_N, zero_N, at, num_rows, size, live_M, live_N, num_inputs,
                    BITS, GATED, HAS_ZEROS, EVEN,
                )  # fmt: skip
        if GATED:
            sum_NM = silu_times(sum_NM, up_NM, kind)
        place_NM = out_ptr + pair_M[None, :] * size + n[:, None]
        tl.store(place_NM, sum_NM.to(kind), mask=live_N[:, None] & live_M[None, :])
    launch_next(PDL)


@triton.jit(do_not_specialize=["first"])
def _add_pairs(
    part_ptr, score_ptr, also_ptr, out_ptr, first, size, num_outputs, C: tl.constexpr, HAS_ALSO: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A token's pairs, each times its score, in the order of its experts, and what all tokens go through."""
    launch_next(PDL)
    wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < size
    total = tl.zeros((BLOCK,), tl.float32)
    for c in tl.static_range(C):
        pair = token * C + c
        part = tl.load(part_ptr + pair * size + column, mask=real, other=0.0).to(tl.float32)
        total += part * tl.load(score_ptr + pair)
    place = token * num_outputs + first + column
    if HAS_ALSO:
        total += tl.load(also_ptr + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=real)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program takes: pairs, outputs, and inputs at a time if weights are not packed; how many of these are on
    their way, and how many warps do them."""

    pairs: int
    outputs: int
    inputs: int
    stages: int
    warps: int


def tile_of(num_pairs: int, num_experts: int, bits: int) -> Tile:
    """The tile for so many pairs and experts, whose weights have so many bits: it does not follow the routing.

    An expert's pairs are one tile where each tile unpacks its weights, else two or so, and a tile what a Hopper GPU's
    registers and shared memory hold. Where few share an expert, unpacked weights are multiplied eight pairs at a time,
    as in `packed_mixture`. Measured for INT4 (docs/log.md), not yet for the others.
    """
    fewest = 8 if bits < 16 and num_pairs <= 4 * num_experts else 16
    wanted = triton.next_power_of_2(triton.cdiv(num_pairs, (1 if bits < 16 else 2) * num_experts))
    return tile_with(min(_MOST_PAIRS[bits], max(fewest, wanted)), bits)


def tile_with(pairs: int, bits: int) -> Tile:
    """The tile of so many pairs, a power of two."""
    if bits == 32:
        return Tile(pairs, 32, 32, 2, 4)
    wide = pairs > 32
    return Tile(pairs, 128 if wide else 64, 64 if wide else 128, _STAGES[bits][pairs], 8 if wide else 4)


def slice_of(num_outputs: int, num_pairs: int, itemsize: int) -> int:
    """Outputs of a slice, whose results for all pairs stay under the bound if it is not the narrowest; all slices but
    the last are as wide."""
    steps = -(-num_outputs // _SLICE_STEP)
    most = max(1, _SLICE_BYTES // (num_pairs * itemsize * _SLICE_STEP))
    num_slices = -(-steps // most)
    return min(num_outputs, -(-steps // num_slices) * _SLICE_STEP)


def mixture_tiled(
    x_TH: Tensor,
    experts_TC: Tensor,
    scores_TC: Tensor,
    gate_up: Tensor | PackedWeight,
    down: Tensor | PackedWeight,
    *,
    also_TH: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Σ score · down(silu(gate(x)) · up(x)) over a token's experts, [T, H] in x's type.

    Args:
        x_TH: contiguous, of the weights' type.
        experts_TC: int32, contiguous.
        scores_TC: float32, contiguous.
        gate_up: [E, 2·I, H], gate's rows first; contiguous.
        down: [E, H, I]; contiguous.
        also_TH: what is added beside the experts; contiguous, of x's type.
        tile: in place of `tile_of`'s.
    """
    (T, H), C = x_TH.shape, experts_TC.shape[1]
    first, second = _Weights.of(gate_up), _Weights.of(down)
    if tile is None:
        tile = tile_of(T * C, first.num_experts, first.bits)
    tiles = sort_pairs(experts_TC, first.num_experts, tile.pairs)
    hidden_PI = torch.empty((T * C, first.num_outputs // 2), dtype=x_TH.dtype, device=x_TH.device)
    _multiply(x_TH, first, tiles, tile, hidden_PI, 0, C=C, GATED=True)
    out_TH = torch.empty_like(x_TH)
    also = x_TH if also_TH is None else also_TH
    width = slice_of(H, T * C, x_TH.element_size())
    part_PN = torch.empty((T * C, width), dtype=x_TH.dtype, device=x_TH.device)
    for start in range(0, H, width):
        size = min(width, H - start)
        part = part_PN.flatten()[: T * C * size].view(T * C, size)
        _multiply(hidden_PI, second, tiles, tile, part, start, C=C, GATED=False)
        _add_pairs[(T, triton.cdiv(size, _ADDED))](
            part, scores_TC, also, out_TH, start, size, H, C=C, HAS_ALSO=also_TH is not None, BLOCK=_ADDED,
            num_warps=4, **overlapped(x_TH.device),
        )  # fmt: skip
    return out_TH


@dataclass(frozen=True, slots=True)
class _Weights:
    """Those of all experts for one product, as the kernel takes them."""

    pointers: tuple[Tensor, Tensor, Tensor]
    num_experts: int
    num_outputs: int
    num_inputs: int
    num_blocks: int
    bits: int
    has_zeros: bool

    @classmethod
    def of(cls, weight: Tensor | PackedWeight) -> _Weights:
        if isinstance(weight, Tensor):
            num_experts, num_outputs, num_inputs = weight.shape
            return cls((weight, weight, weight), num_experts, num_outputs, num_inputs, 0, 8 * weight.itemsize, False)
        has_zeros = weight.zeros is not None
        pointers = (weight.words, weight.scales, weight.scales if weight.zeros is None else weight.zeros)
        num_experts, num_blocks, num_outputs, _ = weight.words.shape
        return cls(pointers, num_experts, num_outputs, weight.num_inputs, num_blocks, weight.bits, has_zeros)


def _multiply(x: Tensor, weights: _Weights, tiles: Tiles, tile: Tile, out_PN: Tensor, first: int, **kind: Any) -> None:
    """Of every pair, into `out_PN`: outputs from `first` on."""
    size, packed = out_PN.shape[1], weights.bits < 16
    num_tiles = triton.cdiv(size, tile.outputs)
    block = 1024 // weights.bits if packed else tile.inputs
    _multiply_tiles[(num_tiles * len(tiles.expert_G),)](
        x, *weights.pointers, tiles.pair_P, tiles.expert_G, tiles.begin_G, tiles.end_G, out_PN, first, size,
        weights.num_outputs, weights.num_inputs, weights.num_blocks, num_tiles, BITS=weights.bits,
        HAS_ZEROS=weights.has_zeros, EVEN=weights.num_inputs % block == 0,
        PRECISION="ieee" if weights.bits == 32 else None, M=tile.pairs, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs,
        STAGES=tile.stages, num_warps=tile.warps, **kind, **overlapped(x.device),
    )  # fmt: skip
