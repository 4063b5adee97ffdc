"""Packed weights from memory into the registers in which the tensor cores want them: no shared memory, no barriers.

For few rows of x, a program is a warp, or one for each split of the inputs. Of each 16 outputs lane 4r + q has rows r
and r + 8, and of each half of their words the q-th four, which lie side by side: 16 bytes a load. Sums may go over the
inputs in any order that x and the weights share, so what a lane has got is what it multiplies, and nothing moves
between lanes. It wants as many neighbouring inputs of x for each plane, and has those of row r. A block's words are
asked for while the block before it is multiplied: near its end, where the compiler moves that (docs/log.md).

Shapes: S splits, N outputs of a tile, M = 8 rows of x, W = 16 words of half a row, Q = 4 lanes of a row. Splits lie
beside each other in what is loaded, R = S · N and L = S · M, so that compilers agree whose warp's each is.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import triton
import triton.language as tl

from outpace.kernels.gpu.packed import fp8_numbers, int4_numbers


@triton.jit
def _planes(place, num_rows, there):
    return (
        tl.load(place, mask=there), tl.load(place + num_rows, mask=there),
        tl.load(place + 2 * num_rows, mask=there), tl.load(place + 3 * num_rows, mask=there),
    )  # fmt: skip


@triton.jit
def load_block(
    word_ptr, scale_ptr, zero_ptr, row_R, at_R, num_rows, there, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr
):  # fmt: skip
    """Blocks of some outputs: both halves of their words, and all scales and zeros, once for each lane of a row.

    Nothing is read, and what comes back is nobody's, where these blocks are not `there`.
    """
    w = tl.arange(0, 16)
    word_RW = word_ptr + (at_R * num_rows + row_R)[:, None] * 32 + w[None, :]
    low = tl.load(word_RW, mask=there, eviction_policy="evict_first")
    high = tl.load(word_RW + 16, mask=there, eviction_policy="evict_first")
    if BITS == 4:
        R: tl.constexpr = row_R.shape[0]
        first_R = at_R * num_rows * 4 + row_R
        lane = tl.reshape(tl.broadcast_to(first_R[:, None], (R, 4)), (4 * R,))
        scales = _planes(scale_ptr + lane, num_rows, there)
        zeros = scales
        if HAS_ZEROS:
            zeros = _planes(zero_ptr + lane, num_rows, there)
    else:
        scales = tl.load(scale_ptr + at_R * num_rows + row_R, mask=there)
        zeros = scales
    return low, high, scales, zeros


@triton.jit
def _behind(first, second, S: tl.constexpr):
    """[S · N, ...] twice to [S · 2N, ...]: in each split those of the one, then those of the other."""
    N: tl.constexpr = first.shape[0] // S
    if len(first.shape) == 1:
        both = tl.join(tl.reshape(first, (S, N)), tl.reshape(second, (S, N)))
        both = tl.reshape(tl.permute(both, (0, 2, 1)), (2 * S * N,))
    else:
        W: tl.constexpr = first.shape[1]
        both = tl.join(tl.reshape(first, (S, N, W)), tl.reshape(second, (S, N, W)))
        both = tl.reshape(tl.permute(both, (0, 3, 1, 2)), (2 * S * N, W))
    return both


@triton.jit
def _planes_behind(a, b, S: tl.constexpr):
    return _behind(a[0], b[0], S), _behind(a[1], b[1], S), _behind(a[2], b[2], S), _behind(a[3], b[3], S)


@triton.jit
def behind(first, second, S: tl.constexpr, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr):
    """Two loaded blocks as one of twice as many outputs.

    With 8 outputs each is a warp's in every split. Loaded as one, 16 outputs would be two warps', who would have to
    exchange them.
    """
    low, high = _behind(first[0], second[0], S), _behind(first[1], second[1], S)
    if BITS == 4:
        scales = _planes_behind(first[2], second[2], S)
        zeros = scales
        if HAS_ZEROS:
            zeros = _planes_behind(first[3], second[3], S)
    else:
        scales = _behind(first[2], second[2], S)
        zeros = scales
    return low, high, scales, zeros


@triton.jit
def _words(word_RW, S: tl.constexpr):
    """Each lane's four words, [S, N, 16]: two for the first sixteen numbers of a product's step, two for the others."""
    N: tl.constexpr = word_RW.shape[0] // S
    return tl.reshape(tl.permute(tl.reshape(word_RW, (S, N, 4, 2, 2)), (0, 1, 3, 2, 4)), (S, N, 16))


@triton.jit
def _for_words(of_lanes, S: tl.constexpr):
    """For each of a lane's words what the lane has for their row."""
    N: tl.constexpr = of_lanes.shape[0] // (4 * S)
    return tl.reshape(tl.broadcast_to(tl.reshape(of_lanes, (S, N, 1, 4, 1)), (S, N, 2, 4, 2)), (S, N, 16))


@triton.jit
def _inputs(x_L, first_L, num_inputs, S: tl.constexpr, EVEN: tl.constexpr):
    """32 inputs of each row for each split, in the order of `_words`: [S, 32, M].

    Other programs want them too: they are to stay in the L1 cache, through which the weights go.
    """
    M: tl.constexpr = x_L.shape[0] // S
    i_LI = first_L[:, None] + tl.arange(0, 32)[None, :]
    if EVEN:
        x = tl.load(x_L[:, None] + i_LI, eviction_policy="evict_last")
    else:
        x = tl.load(x_L[:, None] + i_LI, mask=i_LI < num_inputs, other=0.0, eviction_policy="evict_last")
    x_SMI = tl.reshape(tl.permute(tl.reshape(x, (S, M, 4, 2, 4)), (0, 1, 3, 2, 4)), (S, M, 32))
    return tl.permute(x_SMI, (0, 2, 1))


@triton.jit
def add_loaded(
    sum_SNM, block, x_L, first_L, num_inputs, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Adds W x of blocks that `load_block` has brought, whose first inputs have the numbers `first_L`, to `sum_SNM`."""
    kind: tl.constexpr = x_L.dtype.element_ty
    S: tl.constexpr = sum_SNM.shape[0]
    low, high = _words(block[0], S), _words(block[1], S)
    if BITS == 4:
        for j in tl.static_range(4):
            scale, zero = _for_words(block[2][j], S), _for_words(block[3][j], S)
            x = _inputs(x_L, first_L + 32 * j, num_inputs, S, EVEN)
            sum_SNM = tl.dot(int4_numbers(low, scale, zero, j, False, HAS_ZEROS, kind), x, sum_SNM)
            x = _inputs(x_L, first_L + 128 + 32 * j, num_inputs, S, EVEN)
            sum_SNM = tl.dot(int4_numbers(high, scale, zero, j, True, HAS_ZEROS, kind), x, sum_SNM)
    else:
        part_SNM = tl.zeros_like(sum_SNM)
        for j in tl.static_range(2):
            x = _inputs(x_L, first_L + 64 * j, num_inputs, S, EVEN)
            part_SNM = tl.dot(fp8_numbers(low, j, kind), x, part_SNM)
            x = _inputs(x_L, first_L + 64 * j + 32, num_inputs, S, EVEN)
            part_SNM = tl.dot(fp8_numbers(high, j, kind), x, part_SNM)
        sum_SNM += part_SNM * tl.reshape(block[2], (S, sum_SNM.shape[1]))[:, :, None]
    return sum_SNM
