"""From a product's latents to what attention reads, in one launch: norms, turning, storing.

A token's product holds the queries' latent, if there is one, the keys' and values' latent, and the keys' part that is
turned. The first is normed for the product behind it; the others are normed or turned and go to their slot.

Shapes: B rows, S tokens a row, Q rank of the queries' latent, R of the keys' and values', D turned dimensions.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.rope import finite


@triton.jit
def _sum(part_ptr, place, mask, stride, kind: tl.constexpr, PARTS: tl.constexpr):
    """Summands added up and rounded to the model's type, as float32."""
    total = tl.load(part_ptr + place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(part_ptr + part * stride + place, mask=mask, other=0.0)
    return total.to(kind).to(tl.float32)


@triton.jit
def _norm(x, weight_ptr, at, mask, eps, SIZE: tl.constexpr):
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    return x * scale * tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_latents(
    part_ptr,
    cos_ptr,
    sin_ptr,
    q_weight_ptr,
    weight_ptr,
    slot_ptr,
    q_ptr,
    cache_ptr,
    eps,
    PARTS: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token's; what is not finite is stored as 0."""
    launch_next(PDL)
    token = tl.program_id(0).to(tl.int64)
    kind: tl.constexpr = cache_ptr.dtype.element_ty
    stride = tl.num_programs(0).to(tl.int64) * (Q + R + D)
    source = token * (Q + R + D)
    wait(PDL)
    if tl.program_id(1) == 0:
        r, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
        source += Q
        latent_R = _sum(part_ptr, source + r, r < R, stride, kind, PARTS)
        latent_R = _norm(latent_R, weight_ptr, r, r < R, eps, R).to(kind)
        x_D = _sum(part_ptr, source + R + d, d < D, stride, kind, PARTS)
        y_D = _sum(part_ptr, source + R + (d + D // 2) % D, d < D, stride, kind, PARTS)
        cos = tl.load(cos_ptr + token * D + d, mask=d < D, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + token * D + d, mask=d < D, other=0.0).to(tl.float32)
        place = cache_ptr + tl.load(slot_ptr + token) * (R + D)
        tl.store(place + r, finite(latent_R), mask=r < R)
        tl.store(place + R + d, finite((x_D * cos + y_D * sin).to(kind)), mask=d < D)
    else:
        q = tl.arange(0, BLOCK_Q)
        query_Q = _sum(part_ptr, source + q, q < Q, stride, kind, PARTS)
        query_Q = _norm(query_Q, q_weight_ptr, q, q < Q, eps, Q)
        tl.store(q_ptr + token * Q + q, query_Q.to(kind), mask=q < Q)


def store_latents(
    down: Tensor,
    rotary: tuple[Tensor, Tensor],
    q_weight: Tensor | None,
    kv_weight: Tensor,
    eps: float,
    slots_BS: Tensor,
    cache_NE: Tensor,
) -> Tensor | None:
    """The queries' latent, normed, [B, S, Q]; the rest is stored.

    Args:
        down: [B, S, Q + R + D], or its summands in float32; contiguous, neither normed nor turned.
        rotary: cos and sin, [B, S, 1, D] each, the first half of sin negated.
        q_weight: of the queries' norm, [Q]; None if they have no latent.
        kv_weight: of the other latent's norm, [R].
        eps: of both.
        slots_BS: int64, contiguous.
        cache_NE: one layer's cache, contiguous.
    """
    cos, sin = rotary
    D = cos.shape[-1]
    R, Q = cache_NE.shape[-1] - D, 0 if q_weight is None else q_weight.shape[0]
    queries = None if q_weight is None else torch.empty((*slots_BS.shape, Q), dtype=cache_NE.dtype, device=down.device)
    _store_latents[(slots_BS.numel(), 1 if queries is None else 2)](
        down, cos, sin, kv_weight if q_weight is None else q_weight, kv_weight, slots_BS,
        cache_NE if queries is None else queries, cache_NE, eps, PARTS=1 if down.dim() == 3 else len(down), Q=Q, R=R,
        D=D, BLOCK_Q=triton.next_power_of_2(max(Q, 1)), BLOCK_R=triton.next_power_of_2(R),
        BLOCK_D=triton.next_power_of_2(D), num_warps=4, **overlapped(down.device),
    )  # fmt: skip
    return queries
