"""Products of few rows by INT4 weights: `linear._multiply` over the layout of `kernels/int4.py`.

A row's sums run over the blocks in one order whatever the number of rows, and splits depend on the shape alone, so a
plain step and a verify get the same bits, as with plain weights.

Shapes: M rows, N outputs, K inputs, C splits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.int4 import planes
from outpace.kernels.gpu.linear import FEW_ROWS, finish, tile_of
from outpace.kernels.int4 import BLOCK, Int4

_OUTPUTS = 64


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_int4(
    x_ptr,
    word_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    num_blocks,
    blocks_per_split,
    x_stride,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    kind: tl.constexpr = x_ptr.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    i = tl.arange(0, 32)
    split = tl.program_id(1)
    live_N = n < num_outputs
    live_M1 = (m < num_rows)[:, None]
    rows = num_outputs.to(tl.int64) * (2 if GATED else 1)
    word_NI = word_ptr + n[:, None] * 32 + i[None, :]
    wait(PDL)
    x_MI = x_ptr + m[:, None] * x_stride + i[None, :]
    sum_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    end = tl.minimum((split + 1) * blocks_per_split, num_blocks)
    for at in tl.range(split * blocks_per_split, end, num_stages=STAGES):
        of_block = rows * at
        word = tl.load(word_NI + of_block * 32, mask=live_N[:, None], other=0, eviction_policy="evict_first")
        up_word = word
        if GATED:
            up_NI = word_NI + (of_block + num_outputs) * 32
            up_word = tl.load(up_NI, mask=live_N[:, None], other=0, eviction_policy="evict_first")
        for j in tl.static_range(4):
            live_MI, high_MI = live_M1, live_M1
            if not EVEN:
                live_MI = live_M1 & (at * 256 + 32 * j + i < num_inputs)[None, :]
                high_MI = live_M1 & (at * 256 + 128 + 32 * j + i < num_inputs)[None, :]
            x_low = tl.load(x_MI + at * 256 + 32 * j, mask=live_MI, other=0.0)
            x_high = tl.load(x_MI + at * 256 + 128 + 32 * j, mask=high_MI, other=0.0)
            of_N = of_block * 4 + j * rows + n
            scale = tl.load(scale_ptr + of_N, mask=live_N, other=0)
            zero = scale
            if HAS_ZEROS:
                zero = tl.load(zero_ptr + of_N, mask=live_N, other=0)
            low, high = planes(word, scale, zero, j, HAS_ZEROS, kind)
            sum_NM = tl.dot(low, x_low.T, sum_NM)
            sum_NM = tl.dot(high, x_high.T, sum_NM)
            if GATED:
                scale = tl.load(scale_ptr + of_N + num_outputs, mask=live_N, other=0)
                if HAS_ZEROS:
                    zero = tl.load(zero_ptr + of_N + num_outputs, mask=live_N, other=0)
                low, high = planes(up_word, scale, zero, j, HAS_ZEROS, kind)
                up_NM = tl.dot(low, x_low.T, up_NM)
                up_NM = tl.dot(high, x_high.T, up_NM)
    launch_next(PDL)
    finish(sum_NM, up_NM, bias_ptr, out_ptr, n, m, split, num_rows, num_outputs, GATED, HAS_BIAS)


def fits_int4(x: Tensor, weight: Int4) -> bool:
    """Whether this module takes the product: few rows, evenly spaced, of the weight's type."""
    return x.numel() // x.shape[-1] <= FEW_ROWS and x.stride(-1) == 1 and x.dtype == weight.dtype


def multiply_int4(
    x: Tensor, weight: Int4, bias_N: Tensor | None, *, gated: bool = False, splits: bool = False
) -> Tensor:
    """As `linear.multiply`, of up to 64 rows, by a weight [N, K] in INT4."""
    K, blocks = x.shape[-1], weight.words.shape[0]
    rows_MK = x if x.dim() == 2 else x.flatten(0, -2)
    M, N = rows_MK.shape[0], weight.num_outputs // (2 if gated else 1)
    block_m = max(16, triton.next_power_of_2(M))
    num_splits = min(blocks, tile_of(N, 16, gated, splits).splits)
    per_split = -(-blocks // num_splits)
    num_splits = -(-blocks // per_split)
    shape, dtype = (*x.shape[:-1], N), x.dtype
    if num_splits > 1:
        shape, dtype = (num_splits, *shape), torch.float32
    out = torch.empty(shape, dtype=dtype, device=x.device)
    bias = weight.scales if bias_N is None else bias_N
    zeros = weight.scales if weight.zeros is None else weight.zeros
    _multiply_int4[(triton.cdiv(N, _OUTPUTS), num_splits)](
        rows_MK, weight.words, weight.scales, zeros, bias, out, M, N, K, blocks, per_split, rows_MK.stride(0),
        GATED=gated, HAS_BIAS=bias_N is not None, HAS_ZEROS=weight.zeros is not None, EVEN=K % BLOCK == 0,
        BLOCK_M=block_m, BLOCK_N=_OUTPUTS, STAGES=4 if block_m == 16 else 3, num_warps=4, **overlapped(x.device),
    )  # fmt: skip
    return out
