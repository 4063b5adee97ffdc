"""Packed weights in registers, in the layouts of `kernels/int4.py` and `kernels/fp8.py`, times rows of x.

The lowest eight bits of a bfloat16 count evenly from 0: below its smallest normal number, and up to twice that. So four
of them, by themselves, are their number by a power of two (in a float16 they are or'ed into the mantissa of 1024.0);
moved beside the sign, so are the seven bits of an e4m3. Nothing is converted, and little is shifted and masked: a
multiprocessor does half as many of those a cycle as products, or fewer. What is taken off, or multiplied, is exact.

Shapes: N outputs of a tile, W words of a row, I inputs, M rows of x.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _half(pair, HIGH: tl.constexpr, kind: tl.constexpr):
    """One half of each word, as a number of 16 bits."""
    if HIGH:
        pair = pair >> 16
    return (pair & 0xFFFF).to(tl.uint16).to(kind, bitcast=True)


@triton.jit
def int4_numbers(
    word_NW, scale, zero, j: tl.constexpr, HIGH: tl.constexpr, HAS_ZEROS: tl.constexpr, kind: tl.constexpr
):  # fmt: skip
    """The j-th two numbers of each word, scaled; scales and zeros, for an output or a word, are halves of words.

    A number is the half's value · `factor` - `offset`, over `unit`, each step exact; `unit` goes into the scale.
    """
    odd: tl.constexpr = j % 2
    is_small: tl.constexpr = kind == tl.bfloat16
    bits: tl.constexpr = 0 if is_small else 0x64006400
    factor: tl.constexpr = 1.7014118346046923e38 if is_small else (0.0625 if odd else 1.0)  # 2^127
    offset: tl.constexpr = 0.0 if is_small else (64.0 if odd else 1024.0)
    unit: tl.constexpr = (4.0 if odd else 64.0) if is_small else 1.0
    if j >= 2:
        word_NW = word_NW >> 8
    both_NW = (word_NW & (0x00F000F0 if odd else 0x000F000F)) | bits
    low, high = _half(both_NW, False, kind), _half(both_NW, True, kind)
    taken = tl.full((), offset + 8.0 / unit, kind)
    if HAS_ZEROS:
        taken = _half(zero, HIGH, kind) * (1.0 / unit) + offset
    scale = _half(scale, HIGH, kind) * unit
    raised = tl.full((), factor, kind)
    return tl.interleave((low * raised - taken) * scale, (high * raised - taken) * scale)


@triton.jit
def fp8_numbers(word_NW, j: tl.constexpr, kind: tl.constexpr):
    """The j-th two numbers of each word, without their scales.

    Exponents are put where the type's own lie, whose bias is larger by 120 (8 in float16).
    """
    shift: tl.constexpr = 4 if kind == tl.bfloat16 else 1
    bias: tl.constexpr = 1.329227995784916e36 if kind == tl.bfloat16 else 256.0
    at_top_NW = word_NW << 8 if j == 0 else word_NW
    both_NW = (at_top_NW & -2147450880) | ((at_top_NW & 0x7F007F00) >> shift)  # 0x80008000
    factor = tl.full((), bias, kind)
    return tl.interleave(_half(both_NW, False, kind) * factor, _half(both_NW, True, kind) * factor)


@triton.jit
def _add_int4(
    sum_NM, low_word, high_word, x_low, x_high, scale_N, zero_N, live_N, j: tl.constexpr, ZEROS: tl.constexpr
):
    """Two groups' products, half a block apart; `scale_N` and `zero_N` point to theirs."""
    kind: tl.constexpr = x_low.dtype
    scale = tl.load(scale_N, mask=live_N, other=0)[:, None]
    zero = scale
    if ZEROS:
        zero = tl.load(zero_N, mask=live_N, other=0)[:, None]
    sum_NM = tl.dot(int4_numbers(low_word, scale, zero, j, False, ZEROS, kind), x_low.T, sum_NM)
    return tl.dot(int4_numbers(high_word, scale, zero, j, True, ZEROS, kind), x_high.T, sum_NM)


@triton.jit
def _int4_block(
    sum_NM, up_NM, x_M, word_N, scale_N, zero_N, at, num_rows, half, live_M, live_N, num_inputs,
    GATED: tl.constexpr, HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    of_block = num_rows.to(tl.int64) * at
    w, i = tl.arange(0, 16), tl.arange(0, 32)
    low_NW = word_N[:, None] + of_block * 32 + w[None, :]
    live_N1 = live_N[:, None]
    low = tl.load(low_NW, mask=live_N1, other=0, eviction_policy="evict_first")
    high = tl.load(low_NW + 16, mask=live_N1, other=0, eviction_policy="evict_first")
    up_low, up_high = low, high
    if GATED:
        up_low = tl.load(low_NW + half * 32, mask=live_N1, other=0, eviction_policy="evict_first")
        up_high = tl.load(low_NW + half * 32 + 16, mask=live_N1, other=0, eviction_policy="evict_first")
    for j in tl.static_range(4):
        live_low, live_high = live_M[:, None], live_M[:, None]
        if not EVEN:
            live_low &= (at * 256 + 32 * j + i < num_inputs)[None, :]
            live_high &= (at * 256 + 128 + 32 * j + i < num_inputs)[None, :]
        x_MI = x_M[:, None] + at * 256 + 32 * j + i[None, :]
        x_low = tl.load(x_MI, mask=live_low, other=0.0)
        x_high = tl.load(x_MI + 128, mask=live_high, other=0.0)
        place = of_block * 4 + j * num_rows
        sum_NM = _add_int4(sum_NM, low, high, x_low, x_high, scale_N + place, zero_N + place, live_N, j, HAS_ZEROS)
        if GATED:
            place += half
            up_NM = _add_int4(
                up_NM, up_low, up_high, x_low, x_high, scale_N + place, zero_N + place, live_N, j, HAS_ZEROS
            )
    return sum_NM, up_NM


@triton.jit
def _fp8_block(
    sum_NM, up_NM, x_M, word_N, scale_N, at, num_rows, half, live_M, live_N, num_inputs,
    GATED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = x_M.dtype.element_ty
    of_block = num_rows.to(tl.int64) * at
    w, i = tl.arange(0, 32), tl.arange(0, 64)
    word_NW = word_N[:, None] + of_block * 32 + w[None, :]
    word = tl.load(word_NW, mask=live_N[:, None], other=0, eviction_policy="evict_first")
    up_word = word
    if GATED:
        up_word = tl.load(word_NW + half * 32, mask=live_N[:, None], other=0, eviction_policy="evict_first")
    part_NM, up_part_NM = tl.zeros_like(sum_NM), tl.zeros_like(up_NM)
    for j in tl.static_range(2):
        live_MI = live_M[:, None]
        if not EVEN:
            live_MI &= (at * 128 + 64 * j + i < num_inputs)[None, :]
        x = tl.load(x_M[:, None] + at * 128 + 64 * j + i[None, :], mask=live_MI, other=0.0)
        part_NM = tl.dot(fp8_numbers(word, j, kind), x.T, part_NM)
        if GATED:
            up_part_NM = tl.dot(fp8_numbers(up_word, j, kind), x.T, up_part_NM)
    sum_NM += part_NM * tl.load(scale_N + of_block, mask=live_N, other=0.0)[:, None]
    if GATED:
        up_NM += up_part_NM * tl.load(scale_N + of_block + half, mask=live_N, other=0.0)[:, None]
    return sum_NM, up_NM


@triton.jit
def add_block(
    sum_NM, up_NM, x_M, word_N, scale_N, zero_N, at, num_rows, half, live_M, live_N, num_inputs,
    BITS: tl.constexpr, GATED: tl.constexpr, HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Adds W x of one block of inputs to `sum_NM`, and to `up_NM` for the outputs that lie `half` further.

    Args:
        x_M: pointers to the rows of x.
        word_N, scale_N, zero_N: pointers to the tile's rows, in block 0.
        at: the block.
        num_rows: outputs of the whole weight.
    """
    if BITS == 4:
        return _int4_block(
            sum_NM, up_NM, x_M, word_N, scale_N, zero_N, at, num_rows, half, live_M, live_N, num_inputs, GATED,
            HAS_ZEROS, EVEN,
        )  # fmt: skip
    else:
        return _fp8_block(
            sum_NM, up_NM, x_M, word_N, scale_N, at, num_rows, half, live_M, live_N, num_inputs, GATED, EVEN
        )


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
    WIDTH: tl.constexpr = 32 if BITS == 4 else 64
    at, one = tl.program_id(0), tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, WIDTH)
    live_N = n < num_outputs
    first = (one * num_blocks + at) * num_outputs
    word_N = word_ptr + (first + n) * 32
    out_NK = out_ptr + (one * num_outputs + n[:, None]) * num_inputs + at * BLOCK + k[None, :]
    for j in tl.static_range(PAIRS):
        place = first * (4 if BITS == 4 else 1) + (j * num_outputs if BITS == 4 else 0) + n
        scale = tl.load(scale_ptr + place, mask=live_N, other=0)
        zero = scale
        if HAS_ZEROS:
            zero = tl.load(zero_ptr + place, mask=live_N, other=0)
        for part in tl.static_range(2 if BITS == 4 else 1):
            w = tl.arange(0, WIDTH // 2)
            word = tl.load(word_N[:, None] + 16 * part + w[None, :], mask=live_N[:, None], other=0)
            if BITS == 4:
                numbers = int4_numbers(word, scale[:, None], zero[:, None], j, part == 1, HAS_ZEROS, kind)
            else:
                numbers = (fp8_numbers(word, j, kind).to(tl.float32) * scale[:, None]).to(kind)
            begin = 128 * part + WIDTH * j
            inside_K = at * BLOCK + begin + k < num_inputs
            tl.store(out_NK + begin, numbers, mask=live_N[:, None] & inside_K[None, :])


def unpack(
    words: Tensor, scales: Tensor, zeros: Tensor | None, *, num_inputs: int, bits: int, dtype: torch.dtype
) -> Tensor:
    """As `PackedWeight.unpacked`, of a weight's tensors."""
    *lead, blocks, N, _ = words.shape
    out = torch.empty((*lead, N, num_inputs), dtype=dtype, device=words.device)
    words, scales = words.contiguous(), scales.contiguous()
    of_zeros = scales if zeros is None else zeros.contiguous()
    grid = (blocks, triton.cdiv(N, 64), out.numel() // (N * num_inputs))
    _unpack[grid](
        words, scales, of_zeros, out, N, num_inputs, blocks, BITS=bits, HAS_ZEROS=zeros is not None, BLOCK_N=64
    )
    return out
