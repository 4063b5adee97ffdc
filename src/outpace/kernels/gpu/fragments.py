"""Packed weights from memory into the registers in which the tensor cores want them: no shared memory, no barriers.

For few rows of x, a program is one warp. Of each 16 outputs lane 4r + q has rows r and r + 8, and of each half of their
words the q-th four, which lie side by side: 16 bytes a load. Sums may go over the inputs in any order that x and the
weights share, so what a lane has got is what it multiplies, and nothing moves between lanes. It wants as many
neighbouring inputs of x for each plane, and has those of row r. A block's words are asked for while the block before
it is multiplied.

Shapes: N outputs of a tile, M = 8 rows of x, W = 16 words of half a row, Q = 4 lanes of a row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import triton
import triton.language as tl

from outpace.kernels.gpu.packed import fp8_numbers, int4_numbers


@triton.jit
def _planes(place, num_rows):
    return (
        tl.load(place), tl.load(place + num_rows), tl.load(place + 2 * num_rows), tl.load(place + 3 * num_rows),
    )  # fmt: skip


@triton.jit
def load_block(word_ptr, scale_ptr, zero_ptr, row_N, at, num_rows, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr):
    """Block `at` of some outputs: both halves of their words, and all scales and zeros, once for each lane of a row."""
    w = tl.arange(0, 16)
    word_NW = word_ptr + (at * num_rows + row_N)[:, None] * 32 + w[None, :]
    low = tl.load(word_NW, eviction_policy="evict_first")
    high = tl.load(word_NW + 16, eviction_policy="evict_first")
    if BITS == 4:
        N: tl.constexpr = row_N.shape[0]
        lane = at * num_rows * 4 + tl.reshape(tl.broadcast_to(row_N[:, None], (N, 4)), (4 * N,))
        scales = _planes(scale_ptr + lane, num_rows)
        zeros = scales
        if HAS_ZEROS:
            zeros = _planes(zero_ptr + lane, num_rows)
    else:
        scales = tl.load(scale_ptr + at * num_rows + row_N)
        zeros = scales
    return low, high, scales, zeros


@triton.jit
def _words(word_NW):
    """Each lane's four words: two for the first sixteen numbers of a product's step, two for the others."""
    N: tl.constexpr = word_NW.shape[0]
    return tl.reshape(tl.permute(tl.reshape(word_NW, (N, 4, 2, 2)), (0, 2, 1, 3)), (N, 16))


@triton.jit
def _for_words(of_lanes):
    """For each of a lane's words what the lane has for their row."""
    N: tl.constexpr = of_lanes.shape[0] // 4
    return tl.reshape(tl.broadcast_to(tl.reshape(of_lanes, (N, 1, 4, 1)), (N, 2, 4, 2)), (N, 16))


@triton.jit
def _inputs(x_M, first, num_inputs, EVEN: tl.constexpr):
    """32 inputs of each row, in the order of `_words`."""
    M: tl.constexpr = x_M.shape[0]
    i = first + tl.arange(0, 32)
    if EVEN:
        x = tl.load(x_M[:, None] + i[None, :])
    else:
        x = tl.load(x_M[:, None] + i[None, :], mask=(i < num_inputs)[None, :], other=0.0)
    return tl.reshape(tl.permute(tl.reshape(x, (M, 4, 2, 4)), (0, 2, 1, 3)), (M, 32))


@triton.jit
def add_loaded(
    sum_NM, block, x_M, at, num_inputs, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Adds W x of block `at`, which `load_block` has brought, to `sum_NM`."""
    kind: tl.constexpr = x_M.dtype.element_ty
    low, high = _words(block[0]), _words(block[1])
    if BITS == 4:
        for j in tl.static_range(4):
            scale, zero = _for_words(block[2][j]), _for_words(block[3][j])
            x = _inputs(x_M, at * 256 + 32 * j, num_inputs, EVEN)
            sum_NM = tl.dot(int4_numbers(low, scale, zero, j, False, HAS_ZEROS, kind), x.T, sum_NM)
            x = _inputs(x_M, at * 256 + 128 + 32 * j, num_inputs, EVEN)
            sum_NM = tl.dot(int4_numbers(high, scale, zero, j, True, HAS_ZEROS, kind), x.T, sum_NM)
    else:
        part_NM = tl.zeros_like(sum_NM)
        for j in tl.static_range(2):
            x = _inputs(x_M, at * 128 + 64 * j, num_inputs, EVEN)
            part_NM = tl.dot(fp8_numbers(low, j, kind), x.T, part_NM)
            x = _inputs(x_M, at * 128 + 64 * j + 32, num_inputs, EVEN)
            part_NM = tl.dot(fp8_numbers(high, j, kind), x.T, part_NM)
        sum_NM += part_NM * block[2][:, None]
    return sum_NM
