"""Products of few rows by one weight a head: what brings queries into a latent's space, and values out of it.

Shapes: M rows, N heads, O outputs and K inputs of a head.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

MAX_ROWS = 64
_INPUTS = 128
_PROGRAMS = 132


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_heads(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_row_stride,
    x_head_stride,
    weight_head_stride,
    weight_output_stride,
    weight_input_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    live_O, live_M = o < num_outputs, m < num_rows
    weight_OK = weight_ptr + head * weight_head_stride
    weight_OK += o[:, None] * weight_output_stride + k[None, :] * weight_input_stride
    wait(PDL)
    x_MK = x_ptr + m[:, None] * x_row_stride + head * x_head_stride + k[None, :]
    sum_OM = tl.zeros((BLOCK_O, BLOCK_M), tl.float32)
    for at in tl.range(0, num_inputs, BLOCK_K, num_stages=STAGES):
        inside_K = (at + k < num_inputs)[None, :]
        weight = tl.load(weight_OK + at * weight_input_stride, mask=live_O[:, None] & inside_K, other=0.0)
        x = tl.load(x_MK + at, mask=live_M[:, None] & inside_K, other=0.0)
        sum_OM = tl.dot(weight, x.T, sum_OM)
    launch_next(PDL)
    place_OM = out_ptr + (m[None, :] * tl.num_programs(1) + head) * num_outputs + o[:, None]
    tl.store(place_OM, sum_OM.to(out_ptr.dtype.element_ty), mask=live_O[:, None] & live_M[None, :])


def fits(x_MNK: Tensor) -> bool:
    """Whether this module takes the product: few rows in 16 bits."""
    return x_MNK.shape[0] <= MAX_ROWS and x_MNK.dtype.itemsize == 2


def multiply_heads(x_MNK: Tensor, weight_NOK: Tensor) -> Tensor:
    """[M, N, O], contiguous: each head's x Wᵀ, summed in float32.

    Args:
        x_MNK: up to 64 rows in 16 bits; the last dimension is contiguous.
        weight_NOK: of x's dtype; its strides are free, so it may be the transpose of what lies in memory.
    """
    (M, N, K), O = x_MNK.shape, weight_NOK.shape[1]  # noqa: E741
    out_MNO = torch.empty((M, N, O), dtype=x_MNK.dtype, device=x_MNK.device)
    outputs = 64
    while outputs > 16 and N * triton.cdiv(O, outputs) * 2 <= _PROGRAMS:
        outputs //= 2
    _multiply_heads[(triton.cdiv(O, outputs), N)](
        x_MNK, weight_NOK, out_MNO, M, O, K, x_MNK.stride(0), x_MNK.stride(1), *weight_NOK.stride(),
        BLOCK_M=max(16, triton.next_power_of_2(M)), BLOCK_O=outputs, BLOCK_K=_INPUTS, STAGES=4,
        num_warps=4 if outputs == 64 else 2, **overlapped(x_MNK.device),
    )  # fmt: skip
    return out_MNO
