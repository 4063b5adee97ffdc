"""From the product of queries, keys and values to what attention reads, in one pass.

Every query and key head is normed if the model does that, and turned by its token's angles; queries go to a tensor of
their own, keys and values straight to their slots.

Shapes: B rows, S tokens a row, H query heads, N KV heads, D head dimension.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait


@triton.jit
def finite(x):
    """What is not finite becomes 0; NaN is not below infinity either."""
    wide = x.to(tl.float32)
    return tl.where(tl.abs(wide) < float("inf"), wide, 0.0).to(x.dtype)


@triton.jit
def turned(x_ptr, head_M, cos_ptr, sin_ptr, angle_M, d, live_MD, D: tl.constexpr):
    """Heads that begin at `head_M`, turned by the angles at `angle_M`, in float32; what is not live is 0."""
    partner = (d + D // 2) % D
    x = tl.load(x_ptr + head_M[:, None] + d[None, :], mask=live_MD, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + head_M[:, None] + partner[None, :], mask=live_MD, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + angle_M[:, None] + d[None, :], mask=live_MD, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle_M[:, None] + d[None, :], mask=live_MD, other=0.0).to(tl.float32)
    return x * cos + y * sin


@triton.jit
def _turn_and_store(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_weight_ptr,
    k_weight_ptr,
    slot_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    eps,
    H: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    real = d < D
    partner = (d + D // 2) % D
    source = qkv_ptr + (token * (H + 2 * N) + head) * D
    x = tl.load(source + d, mask=real, other=0.0)
    if head < H + N:
        y = tl.load(source + partner, mask=real, other=0.0)
        if NORMS:
            wide = x.to(tl.float32)
            scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / D + eps)
            weight_ptr = q_weight_ptr if head < H else k_weight_ptr
            x_weight = tl.load(weight_ptr + d, mask=real, other=0.0).to(tl.float32)
            y_weight = tl.load(weight_ptr + partner, mask=real, other=0.0).to(tl.float32)
            y = (y.to(tl.float32) * scale * y_weight).to(x.dtype)
            x = (wide * scale * x_weight).to(x.dtype)
        cos = tl.load(cos_ptr + token * D + d, mask=real, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + token * D + d, mask=real, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * cos + y.to(tl.float32) * sin).to(x.dtype)
    if head < H:
        tl.store(q_ptr + (token * H + head) * D + d, x, mask=real)
    else:
        x = finite(x)
        slot = tl.load(slot_ptr + token)
        if head < H + N:
            tl.store(keys_ptr + (slot * N + head - H) * D + d, x, mask=real)
        else:
            tl.store(values_ptr + (slot * N + head - H - N) * D + d, x, mask=real)


@triton.jit(do_not_specialize=["ahead"])
def _angles(position_ptr, freq_ptr, cos_ptr, sin_ptr, scale, ahead, D: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    real = d < D
    position = tl.maximum(tl.load(position_ptr + place) + ahead, 0)
    angle = position.to(tl.float32) * tl.load(freq_ptr + d % (D // 2), mask=real, other=0.0)
    sin = tl.sin(angle) * scale
    kind = cos_ptr.dtype.element_ty
    tl.store(cos_ptr + place * D + d, (tl.cos(angle) * scale).to(kind), mask=real)
    tl.store(sin_ptr + place * D + d, tl.where(d < D // 2, -sin, sin).to(kind), mask=real)


def angles(
    positions_BS: Tensor, inv_freq: Tensor, scale: float, dtype: torch.dtype, ahead: int
) -> tuple[Tensor, Tensor]:
    """cos and sin of positions + ahead, [B, S, 1, D] each in `dtype`, the first half of sin negated.

    Args:
        positions_BS: int64; what falls below 0 is taken for 0.
        inv_freq: float32 [D / 2], radians a position.
        scale: of both.
        dtype: of what is returned.
        ahead: added to the positions.
    """
    B, S = positions_BS.shape
    D = 2 * inv_freq.shape[0]
    cos = torch.empty((B, S, 1, D), dtype=dtype, device=positions_BS.device)
    sin = torch.empty_like(cos)
    block = triton.next_power_of_2(D)
    _angles[(B * S,)](positions_BS.contiguous(), inv_freq, cos, sin, scale, ahead, D=D, BLOCK=block, num_warps=1)
    return cos, sin


def turn_and_store(
    qkv_BSND: Tensor,
    rotary: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor, float] | None,
    slots_BS: Tensor,
    keys_NHD: Tensor,
    values_NHD: Tensor,
) -> Tensor:
    """Turned queries, contiguous [B, S, H, D]; turned keys and the values are written at their slots.

    Args:
        qkv_BSND: contiguous; query, key and value heads in this order.
        rotary: cos and sin, [B, S, 1, D] each, the first half of sin negated.
        norms: weights of the query and key norms, and their epsilon; None if there are none.
        slots_BS: int64, contiguous.
        keys_NHD: one layer's keys for all slots, contiguous; values_NHD likewise.
    """
    B, S, num_heads, D = qkv_BSND.shape
    N = keys_NHD.shape[1]
    H = num_heads - 2 * N
    q_BSHD = torch.empty((B, S, H, D), dtype=qkv_BSND.dtype, device=qkv_BSND.device)
    cos, sin = rotary
    q_weight, k_weight, eps = norms if norms is not None else (cos, cos, 0.0)
    _turn_and_store[(B * S, num_heads)](
        qkv_BSND,
        cos,
        sin,
        q_weight,
        k_weight,
        slots_BS,
        q_BSHD,
        keys_NHD,
        values_NHD,
        eps,
        H=H,
        N=N,
        D=D,
        NORMS=norms is not None,
        BLOCK=triton.next_power_of_2(D),
        num_warps=1,
        **overlapped(qkv_BSND.device),
    )
    return q_BSHD
