"""Packed weights in registers, in the layouts of `kernels/int4.py` and `kernels/fp8.py`, times rows of x.

Or'ed into the mantissa of 128.0 (1024.0 in float16), four bits are 128 plus their number; moved beside the sign, the
seven bits of an e4m3 are their number by a power of two. So nothing is converted, which a multiprocessor does to few
numbers a cycle. What is taken off, or multiplied, is exact.

Shapes: N outputs of a tile, I = 32 words of a block, M rows of x.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.packed import PackedWeight


@triton.jit
def _half(pair, HIGH: tl.constexpr, kind: tl.constexpr):
    """One half of each word, as a number of 16 bits."""
    if HIGH:
        pair = pair >> 16
    return (pair & 0xFFFF).to(tl.uint16).to(kind, bitcast=True)


@triton.jit
def _int4_planes(word_NI, scale_N, zero_N, j: tl.constexpr, HAS_ZEROS: tl.constexpr, kind: tl.constexpr):
    """Weights of planes j and j + 4 of a block, [N, 32] each; scales and zeros come in pairs."""
    bits: tl.constexpr = 0x43004300 if kind == tl.bfloat16 else 0x64006400
    eight: tl.constexpr = 136.0 if kind == tl.bfloat16 else 1032.0
    both_NI = ((word_NI >> (4 * j)) & 0x000F000F) | bits
    low_NI, high_NI = _half(both_NI, False, kind), _half(both_NI, True, kind)
    if HAS_ZEROS:
        low_NI -= _half(zero_N, False, kind)[:, None]
        high_NI -= _half(zero_N, True, kind)[:, None]
    else:
        low_NI -= tl.full((), eight, kind)
        high_NI -= tl.full((), eight, kind)
    return low_NI * _half(scale_N, False, kind)[:, None], high_NI * _half(scale_N, True, kind)[:, None]


@triton.jit
def _fp8_planes(word_NI, j: tl.constexpr, kind: tl.constexpr):
    """Numbers of planes j and j + 2 of a block, [N, 32] each, without their scales.

    Exponents are put where the type's own lie, whose bias is larger by 120 (8 in float16).
    """
    shift: tl.constexpr = 4 if kind == tl.bfloat16 else 1
    bias: tl.constexpr = 1.329227995784916e36 if kind == tl.bfloat16 else 256.0
    at_top_NI = word_NI << (8 - 8 * j) if j == 0 else word_NI
    sign_NI = at_top_NI & -2147450880  # 0x80008000
    both_NI = sign_NI | ((at_top_NI & 0x7F007F00) >> shift)
    factor = tl.full((), bias, kind)
    return _half(both_NI, False, kind) * factor, _half(both_NI, True, kind) * factor


@triton.jit
def _add_planes(
    sum_NM,
    word_NI,
    x_low,
    x_high,
    scale_N,
    zero_N,
    live_N,
    j: tl.constexpr,
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """Two planes' products, half a block apart; `scale_N` and `zero_N` point to an INT4's."""
    kind: tl.constexpr = x_low.dtype
    if BITS == 4:
        scale = tl.load(scale_N, mask=live_N, other=0)
        zero = scale
        if HAS_ZEROS:
            zero = tl.load(zero_N, mask=live_N, other=0)
        low, high = _int4_planes(word_NI, scale, zero, j, HAS_ZEROS, kind)
    else:
        low, high = _fp8_planes(word_NI, j, kind)
    sum_NM = tl.dot(low, x_low.T, sum_NM)
    return tl.dot(high, x_high.T, sum_NM)


@triton.jit
def add_block(
    sum_NM,
    up_NM,
    x_MI,
    word_NI,
    scale_N,
    zero_N,
    at,
    num_rows,
    half,
    live_M,
    live_N,
    num_inputs,
    BITS: tl.constexpr,
    GATED: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Adds W x of one block of inputs to `sum_NM`, and to `up_NM` for the outputs that lie `half` further.

    Args:
        x_MI: pointers to the first 32 inputs of each row.
        word_NI, scale_N, zero_N: pointers to the tile's, in block 0.
        at: the block.
        num_rows: outputs of the whole weight.
    """
    PAIRS: tl.constexpr = 16 // BITS
    BLOCK: tl.constexpr = 1024 // BITS
    SCALES: tl.constexpr = 4 if BITS == 4 else 1
    i = tl.arange(0, 32)
    of_block = num_rows.to(tl.int64) * at
    word = tl.load(word_NI + of_block * 32, mask=live_N[:, None], other=0, eviction_policy="evict_first")
    up_word = word
    if GATED:
        up_NI = word_NI + (of_block + half) * 32
        up_word = tl.load(up_NI, mask=live_N[:, None], other=0, eviction_policy="evict_first")
    part_NM, up_part_NM = sum_NM, up_NM
    if BITS == 8:
        part_NM, up_part_NM = tl.zeros_like(sum_NM), tl.zeros_like(up_NM)
    for j in tl.static_range(PAIRS):
        live_MI, high_MI = live_M[:, None], live_M[:, None]
        if not EVEN:
            live_MI &= (at * BLOCK + 32 * j + i < num_inputs)[None, :]
            high_MI &= (at * BLOCK + BLOCK // 2 + 32 * j + i < num_inputs)[None, :]
        x_low = tl.load(x_MI + at * BLOCK + 32 * j, mask=live_MI, other=0.0)
        x_high = tl.load(x_MI + at * BLOCK + BLOCK // 2 + 32 * j, mask=high_MI, other=0.0)
        place = of_block * SCALES + (j * num_rows if BITS == 4 else 0)
        part_NM = _add_planes(part_NM, word, x_low, x_high, scale_N + place, zero_N + place, live_N, j, BITS, HAS_ZEROS)
        if GATED:
            up_at = place + half
            up_part_NM = _add_planes(
                up_part_NM, up_word, x_low, x_high, scale_N + up_at, zero_N + up_at, live_N, j, BITS, HAS_ZEROS
            )
    if BITS == 8:
        part_NM = sum_NM + part_NM * tl.load(scale_N + of_block, mask=live_N, other=0.0)[:, None]
        if GATED:
            up_scale_N = tl.load(scale_N + of_block + half, mask=live_N, other=0.0)
            up_part_NM = up_NM + up_part_NM * up_scale_N[:, None]
    return part_NM, up_part_NM


def layout(weight: PackedWeight, num_inputs: int) -> dict[str, Any]:
    """What a kernel that calls `add_block` has to know of a weight at compile time."""
    even = num_inputs % weight.block() == 0
    return {"BITS": weight.bits, "HAS_ZEROS": weight.zeros is not None, "EVEN": even}


@triton.jit
def _unpack(
    word_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    num_outputs,
    num_inputs,
    num_blocks,
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A block of inputs of some outputs, as the model's type has them."""
    kind: tl.constexpr = out_ptr.dtype.element_ty
    PAIRS: tl.constexpr = 16 // BITS
    BLOCK: tl.constexpr = 1024 // BITS
    SCALES: tl.constexpr = 4 if BITS == 4 else 1
    at, one = tl.program_id(0), tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    i = tl.arange(0, 32)
    live_N = n < num_outputs
    first = (one * num_blocks + at) * num_outputs
    word = tl.load(word_ptr + (first + n[:, None]) * 32 + i[None, :], mask=live_N[:, None], other=0)
    out_NI = out_ptr + (one * num_outputs + n[:, None]) * num_inputs + at * BLOCK + i[None, :]
    for j in tl.static_range(PAIRS):
        place = first * SCALES + (j * num_outputs if BITS == 4 else 0) + n
        scale = tl.load(scale_ptr + place, mask=live_N, other=0)
        if BITS == 4:
            zero = scale
            if HAS_ZEROS:
                zero = tl.load(zero_ptr + place, mask=live_N, other=0)
            low, high = _int4_planes(word, scale, zero, j, HAS_ZEROS, kind)
        else:
            low, high = _fp8_planes(word, j, kind)
            low = (low.to(tl.float32) * scale[:, None]).to(kind)
            high = (high.to(tl.float32) * scale[:, None]).to(kind)
        inside_I = at * BLOCK + 32 * j + i < num_inputs
        tl.store(out_NI + 32 * j, low, mask=live_N[:, None] & inside_I[None, :])
        inside_I = at * BLOCK + BLOCK // 2 + 32 * j + i < num_inputs
        tl.store(out_NI + BLOCK // 2 + 32 * j, high, mask=live_N[:, None] & inside_I[None, :])


def unpack(weight: PackedWeight) -> Tensor:
    """As `PackedWeight.unpacked`."""
    *lead, blocks, N, _ = weight.words.shape
    out = torch.empty((*lead, N, weight.num_inputs), dtype=weight.dtype, device=weight.words.device)
    words, scales = weight.words.contiguous(), weight.scales.contiguous()
    zeros = scales if weight.zeros is None else weight.zeros.contiguous()
    grid = (blocks, triton.cdiv(N, 64), out.numel() // (N * weight.num_inputs))
    _unpack[grid](
        words, scales, zeros, out, N, weight.num_inputs, blocks, BITS=weight.bits, HAS_ZEROS=weight.zeros is not None,
        BLOCK_N=64,
    )  # fmt: skip
    return out
