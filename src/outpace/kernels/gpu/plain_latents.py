"""Latent attention in plain form, of many tokens a row; `kernels/plain_latents.py` says when, and is the reference.

One program attends for a tile of tokens of one head. Its scores are two products: of the plain parts, and of the turned
ones, whose keys are one for all heads. The queries are turned on the way.

Shapes: B rows, S tokens a row, T positions, N heads, P plain, D turned and V value dimensions of a head, E elements of
a latent with its turned key behind.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.rope import turned
from outpace.kernels.gpu.softmax import soften

_LOG2_E = 1.4426950408889634
_TILE, _WIDE_TILE = (128, 64), (64, 32)
"""Tokens of a program, and positions that it reads at a time; in 32 bits there is room for fewer."""


@triton.jit(do_not_specialize=["num_tokens", "num_positions"])
def _attend_plain(
    plain_ptr,
    turned_ptr,
    cos_ptr,
    sin_ptr,
    kv_ptr,
    latent_ptr,
    start_ptr,
    out_ptr,
    num_tokens,
    num_positions,
    plain_stride,
    turned_stride,
    scale,
    N: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    tile, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    kind: tl.constexpr = kv_ptr.dtype.element_ty
    wait(PDL)
    start = tl.load(start_ptr + row).to(tl.int32)
    token_M = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    live_M = token_M < num_tokens
    own_M = start + token_M
    end = tl.minimum(start + tl.minimum((tile + 1) * BLOCK_M, num_tokens), num_positions)
    p, v, d = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_D)
    real_P, real_V, real_D = p < P, v < V, d < D
    query_M = (row * num_tokens + token_M) * N + head
    live_MP, live_MD = live_M[:, None] & real_P[None, :], live_M[:, None] & real_D[None, :]
    q_MP = tl.load(plain_ptr + query_M[:, None] * plain_stride + p[None, :], mask=live_MP, other=0.0)
    heads_M, angles_M = query_M * turned_stride, (row * num_tokens + token_M) * D
    q_MD = turned(turned_ptr, heads_M, cos_ptr, sin_ptr, angles_M, d, live_MD, D).to(kind)

    peak_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total_M = tl.zeros((BLOCK_M,), tl.float32)
    out_MV = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    kv_row = kv_ptr + (row * num_positions * N + head) * (P + V)
    latent_row = latent_ptr + row * num_positions * E + (E - D)
    # What all tokens of the tile see comes first, without masks.
    seen_by_all = tl.minimum(start + tile * BLOCK_M + 1, end) // BLOCK_T * BLOCK_T
    for MASKED in tl.static_range(0, 2):
        for at in range(seen_by_all if MASKED else 0, end if MASKED else seen_by_all, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            inside_T = t < end
            place_T = t.to(tl.int64) * N * (P + V)
            real_TP, real_TV, real_TD = real_P[None, :], real_V[None, :], real_D[None, :]
            if MASKED:
                real_TP, real_TV = inside_T[:, None] & real_TP, inside_T[:, None] & real_TV
                real_TD = inside_T[:, None] & real_TD
            key_TP = tl.load(kv_row + place_T[:, None] + p[None, :], mask=real_TP, other=0.0)
            value_TV = tl.load(kv_row + place_T[:, None] + P + v[None, :], mask=real_TV, other=0.0)
            key_TD = tl.load(latent_row + t.to(tl.int64)[:, None] * E + d[None, :], mask=real_TD, other=0.0)
            score_MT = tl.dot(q_MP, key_TP.T, input_precision=PRECISION)
            score_MT = tl.dot(q_MD, key_TD.T, score_MT, input_precision=PRECISION) * scale
            if MASKED:
                score_MT = tl.where(inside_T[None, :] & (t[None, :] <= own_M[:, None]), score_MT, float("-inf"))
            weight_MT, fade_M, peak_M, total_M = soften(score_MT, peak_M, total_M)
            out_MV = tl.dot(weight_MT.to(kind), value_TV, out_MV * fade_M[:, None], input_precision=PRECISION)

    out_MV = out_MV / tl.where(total_M == 0.0, 1.0, total_M)[:, None]
    live_MV = live_M[:, None] & real_V[None, :]
    tl.store(out_ptr + query_M[:, None] * V + v[None, :], out_MV.to(kind), mask=live_MV)


def plain_latent_attention(
    plain_BSNP: Tensor,
    turned_BSND: Tensor,
    rotary: tuple[Tensor, Tensor],
    kv_BTNO: Tensor,
    latents_BTE: Tensor,
    start_B: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Causal softmax attention of S tokens a row over positions 0 … of their row, [B, S, N, V].

    Args:
        plain_BSNP: the queries' part that is not turned; its heads are evenly spaced.
        turned_BSND: their part that is still to be turned, likewise.
        rotary: cos and sin of the tokens, [B, S, 1, D] each, the first half of sin negated.
        kv_BTNO: each head's plain key, then value, of every position, contiguous.
        latents_BTE: the latents with the turned keys behind, contiguous; of these the keys are read.
        start_B: int64 position of each row's first token.
        scale: of the scores.
    """
    B, S, N, P = plain_BSNP.shape
    T, D, E = kv_BTNO.shape[1], turned_BSND.shape[-1], latents_BTE.shape[-1]
    V = kv_BTNO.shape[-1] - P
    out_BSNV = torch.empty((B, S, N, V), dtype=kv_BTNO.dtype, device=kv_BTNO.device)
    block_m, block_t = _WIDE_TILE if kv_BTNO.dtype == torch.float32 else _TILE
    block_p, block_v, block_d = (max(16, triton.next_power_of_2(size)) for size in (P, V, D))
    _attend_plain[(triton.cdiv(S, block_m), N, B)](
        plain_BSNP,
        turned_BSND,
        *rotary,
        kv_BTNO,
        latents_BTE,
        start_B,
        out_BSNV,
        S,
        T,
        plain_BSNP.stride(2),
        turned_BSND.stride(2),
        scale * _LOG2_E,
        N=N,
        P=P,
        V=V,
        D=D,
        E=E,
        BLOCK_M=block_m,
        BLOCK_T=block_t,
        BLOCK_P=block_p,
        BLOCK_V=block_v,
        BLOCK_D=block_d,
        PRECISION="ieee" if kv_BTNO.dtype == torch.float32 else None,
        num_warps=8,
        num_stages=3,
        **overlapped(out_BSNV.device),
    )
    return out_BSNV
