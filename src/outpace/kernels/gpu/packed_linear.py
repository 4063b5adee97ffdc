"""Products of few rows by packed weights: `linear._multiply` over the layouts of `kernels/packed.py`.

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
from outpace.kernels.gpu.linear import FEW_ROWS, filled, finish, tile_of
from outpace.kernels.gpu.packed import add_block
from outpace.kernels.packed import PackedWeight

_OUTPUTS, _WARPS = 32, 2
"""Of a tile. So small, its products are the tensor cores' synchronous ones, whatever the number of rows."""


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_packed(
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
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    live_N, live_M = n < num_outputs, m < num_rows
    word_N = word_ptr + n * 32
    wait(PDL)
    x_M = x_ptr + m * x_stride
    sum_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    end = tl.minimum((split + 1) * blocks_per_split, num_blocks)
    for at in tl.range(split * blocks_per_split, end, num_stages=STAGES):
        sum_NM, up_NM = add_block(
            sum_NM, up_NM, x_M, word_N, scale_ptr + n, zero_ptr + n, at, num_outputs * (2 if GATED else 1),
            num_outputs, live_M, live_N, num_inputs, BITS, GATED, HAS_ZEROS, EVEN,
        )  # fmt: skip
    launch_next(PDL)
    finish(sum_NM, up_NM, bias_ptr, out_ptr, n, m, split, num_rows, num_outputs, GATED, HAS_BIAS)


def fits_packed(x: Tensor, weight: PackedWeight) -> bool:
    """Whether this module takes the product: few rows, evenly spaced, of the weight's type."""
    return x.numel() // x.shape[-1] <= FEW_ROWS and x.stride(-1) == 1 and x.dtype == weight.dtype


def multiply_packed(
    x: Tensor,
    weight: PackedWeight,
    bias_N: Tensor | None,
    *,
    gated: bool = False,
    splits: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """As `linear.multiply`, of up to 64 rows, by a packed weight [N, K]."""
    K, blocks = x.shape[-1], weight.num_blocks
    rows_MK = x if x.dim() == 2 else x.flatten(0, -2)
    M, N = rows_MK.shape[0], weight.num_outputs // (2 if gated else 1)
    block_m = filled(M)
    num_splits = min(blocks, tile_of(N, 16, gated, splits, K).splits)
    per_split = -(-blocks // num_splits)
    num_splits = -(-blocks // per_split)
    shape, dtype = (*x.shape[:-1], N), x.dtype
    if num_splits > 1:
        shape, dtype = (num_splits, *shape), torch.float32
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    bias = weight.scales if bias_N is None else bias_N
    zeros = weight.scales if weight.zeros is None else weight.zeros
    _multiply_packed[(triton.cdiv(N, _OUTPUTS), num_splits)](
        rows_MK, weight.words, weight.scales, zeros, bias, out, M, N, K, blocks, per_split, rows_MK.stride(0),
        GATED=gated, HAS_BIAS=bias_N is not None, **weight.layout(K), BLOCK_M=block_m, BLOCK_N=_OUTPUTS,
        STAGES=4 if block_m == 16 else 3, num_warps=_WARPS, **overlapped(x.device),
    )  # fmt: skip
    return out
