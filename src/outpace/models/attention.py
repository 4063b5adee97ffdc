"""The attention of a layer, a target's or a drafter's: latent where its sizes say so, grouped-query otherwise."""

from __future__ import annotations

import torch

from outpace.distributed.group import Group
from outpace.models.arch import TargetConfig
from outpace.models.latent import LatentAttention
from outpace.models.layers import Attention
from outpace.models.wiring import LayerShape


def attention_of(
    shape: TargetConfig | LayerShape,
    in_features: int,
    *,
    group: Group,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Attention | LatentAttention:
    """Its weights are uninitialised.

    Args:
        shape: sizes, and which optional tensors there are.
        in_features: of its input, which may be wider than the model.
        group: the ranks that share its heads.
    """
    if shape.latent is not None:
        return LatentAttention(
            in_features,
            shape.hidden_size,
            shape.latent,
            num_heads=shape.num_heads,
            turned_dim=shape.head_dim,
            qkv_bias=shape.qkv_bias,
            output_bias=shape.output_bias,
            group=group,
            dtype=dtype,
            device=device,
        )
    return Attention(
        in_features,
        shape.hidden_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        qkv_bias=shape.qkv_bias,
        output_bias=shape.output_bias,
        qk_norm_eps=shape.norm_eps if shape.qk_norm else None,
        group=group,
        dtype=dtype,
        device=device,
    )
