"""Residual and RMSNorm in one pass: the sum is written once and normed while it is in registers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait


@triton.jit
def _add_rms_norm(
    x_ptr,
    delta_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    num_columns,
    x_stride,
    part_stride,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < num_columns
    weight = tl.load(weight_ptr + column, mask=real, other=0.0).to(tl.float32)
    wait(PDL)
    x = tl.load(x_ptr + row * x_stride + column, mask=real, other=0.0)
    if PARTS > 0:
        delta = tl.load(delta_ptr + row * num_columns + column, mask=real, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            delta += tl.load(delta_ptr + part * part_stride + row * num_columns + column, mask=real, other=0.0)
        x = (x.to(tl.float32) + delta).to(x.dtype)  # rounded as the stored sum is
        tl.store(sum_ptr + row * num_columns + column, x, mask=real)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / num_columns + eps)
    tl.store(out_ptr + row * num_columns + column, (wide * scale * weight).to(x.dtype), mask=real)


@triton.jit
def _embed_and_norm(
    token_ptr,
    hidden_ptr,
    embed_ptr,
    embed_weight_ptr,
    hidden_weight_ptr,
    out_ptr,
    num_columns,
    eps,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    real = column < num_columns
    if half == 0:
        source = embed_ptr + tl.load(token_ptr + place) * num_columns
        weight_ptr = embed_weight_ptr
    else:
        source = hidden_ptr + place * num_columns
        weight_ptr = hidden_weight_ptr
    x = tl.load(source + column, mask=real, other=0.0)
    weight = tl.load(weight_ptr + column, mask=real, other=0.0).to(tl.float32)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / num_columns + eps)
    tl.store(out_ptr + (place * 2 + half) * num_columns + column, (wide * scale * weight).to(x.dtype), mask=real)


def embed_and_norm(
    tokens_BS: Tensor, hidden_BSH: Tensor, embed_VH: Tensor, embed_weight: Tensor, hidden_weight: Tensor, eps: float
) -> Tensor:
    """RMSNorms of each token's embedding and of its hidden state, side by side: [B, S, 2H].

    Args:
        tokens_BS: int64 ids, contiguous.
        hidden_BSH: in the dtype of the embeddings.
        embed_VH: contiguous.
        embed_weight, hidden_weight: the norms' weights, [H].
        eps: added to the mean squares.
    """
    B, S, H = hidden_BSH.shape
    out = torch.empty((B, S, 2 * H), dtype=hidden_BSH.dtype, device=hidden_BSH.device)
    block = triton.next_power_of_2(H)
    _embed_and_norm[(B * S, 2)](
        tokens_BS.contiguous(),
        hidden_BSH.contiguous(),
        embed_VH,
        embed_weight,
        hidden_weight,
        out,
        H,
        eps,
        BLOCK=block,
        num_warps=min(8, max(1, block // 512)),
    )
    return out


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMSNorm · weight) over the last dimension, float32 inside.

    Args:
        x: [..., H]; the last dimension is contiguous and the others are evenly spaced.
        delta: contiguous, of x's shape, or its summands [C, ..., H] in float32; None is 0, and x itself comes back.
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
        rows.shape[0] * columns,
        eps,
        PARTS=0 if delta is None else delta.shape[0] if delta.dim() > x.dim() else 1,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
        **overlapped(x.device),
    )
    return total, out
