"""Latent attention in its plain form: keys and values of every head are made from the latents, then attended to.

Absorbed, a query takes 2R + D multiplications for a position and a head, and nothing is made. Plain, it takes
P + D + V, which is a third at DeepSeek-V3's sizes, and R(P + V) once for each position: so it pays where many tokens
follow.

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.

Shapes: B rows, S tokens a row, T positions from 0 on, N heads, R rank of the latent, D turned, P plain and V value
dimensions of a head, E = R + D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MARGIN = 1.5
"""So many times as many tokens as would be even: what is made has to be written and read as well."""
MOST_BYTES = 256 << 20
"""Of what is made for one layer; beyond it is not."""


def pays(num_tokens: int, num_positions: int, kv_up_NOR: Tensor) -> bool:
    """Whether so many tokens a row are better attended for in plain form.

    Args:
        num_tokens: a row.
        num_positions: that latents are brought up for, of all rows.
        kv_up_NOR: from a latent to each head's plain key, then value.
    """
    N, outputs, R = kv_up_NOR.shape
    saved = num_tokens * (2 * R - outputs)  # for each position and head; the turned part is the same in both
    return saved > MARGIN * R * outputs and num_positions * N * outputs * kv_up_NOR.element_size() <= MOST_BYTES


def bring_up(latents_BTE: Tensor, kv_up_NOR: Tensor) -> Tensor:
    """Each head's plain key, then value, of every position: [B, T, N, P + V], contiguous."""
    N, outputs, R = kv_up_NOR.shape
    made: Tensor = F.linear(latents_BTE[..., :R], kv_up_NOR.flatten(0, 1)).unflatten(-1, (N, outputs))
    return made


def attend(
    q_BSNQ: Tensor, kv_BTNO: Tensor, turned_BTD: Tensor, visible_BST: Tensor, *, plain_dim: int, scale: float
) -> Tensor:
    """Attention output [B, S, N, V]; on a GPU `gpu.plain_latents` does it.

    Args:
        q_BSNQ: queries, plain and turned parts side by side, the latter turned.
        kv_BTNO: as `bring_up` makes it.
        turned_BTD: the keys' turned part, one for all heads.
        visible_BST: what each query sees.
        plain_dim: P.
        scale: of the scores.
    """
    N = kv_BTNO.shape[2]
    k_BTNQ = torch.cat((kv_BTNO[..., :plain_dim], turned_BTD[:, :, None].expand(-1, -1, N, -1)), -1)
    q, k, v = (x.transpose(1, 2) for x in (q_BSNQ, k_BTNQ, kv_BTNO[..., plain_dim:]))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible_BST[:, None], scale=scale).transpose(1, 2)
