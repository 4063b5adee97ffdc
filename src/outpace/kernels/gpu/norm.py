"""Residual and RMSNorm in one pass: the sum is written once and normed while it is in registers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(
    x_ptr,
    delta_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    num_columns,
    x_stride,
    eps,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < num_columns
    x = tl.load(x_ptr + row * x_stride + column, mask=real, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + row * num_columns + column, mask=real, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)  # rounded as the stored sum is
        tl.store(sum_ptr + row * num_columns + column, x, mask=real)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / num_columns + eps)
    weight = tl.load(weight_ptr + column, mask=real, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * num_columns + column, (wide * scale * weight).to(x.dtype), mask=real)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMSNorm · weight) over the last dimension, float32 inside.

    Args:
        x: [..., H]; the last dimension is contiguous and the others are evenly spaced.
        delta: contiguous, of x's shape; None is 0, and x itself comes back.
        weight: [H].
        eps: added to the mean square.
    """
    columns = x.shape[-1]
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if delta is None else torch.empty_like(out)
    block = triton.next_power_of_2(columns)
    _add_rms_norm[(rows.shape[0],)](
        rows,
        rows if delta is None else delta,
        weight,
        total,
        out,
        columns,
        rows.stride(0),
        eps,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=min(8, max(1, block // 512)),
    )
    return total, out
