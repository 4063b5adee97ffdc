"""What a layer stores of tokens whose output nobody asks for is what its forward stores of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from outpace.distributed.group import ALONE
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import KVCache
from outpace.models.arch import LatentConfig, RopeConfig
from outpace.models.latent import LatentAttention
from outpace.models.layers import Attention
from outpace.models.linear import pack
from outpace.models.rope import RotaryEmbedding

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, RANK, PAGE, B, S = 48, 4, 2, 16, 32, 4, 2, 9
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
Layer = Attention | LatentAttention


def grouped(device: str, *, whole: bool) -> Attention:
    return Attention(
        HIDDEN,
        HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        qkv_bias=whole,
        qk_norm_eps=1e-5 if whole else None,
        device=device,
    )


def latent(device: str) -> LatentAttention:
    shape = LatentConfig(kv_rank=RANK, q_rank=16, plain_dim=16, value_dim=16, scale=0.2, interleaved=False)
    return LatentAttention(
        HIDDEN, HIDDEN, shape, num_heads=HEADS, turned_dim=HEAD_DIM, qkv_bias=True, group=ALONE, device=device
    )


LAYERS: dict[str, Callable[[str], Layer]] = {
    "grouped": lambda device: grouped(device, whole=False),
    "grouped, with norms and biases": lambda device: grouped(device, whole=True),
    "latent": latent,
}


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LAYERS)
@torch.inference_mode()
def test_stored_alone_as_by_a_forward(name: str, packed: bool, device: str) -> None:
    layer = LAYERS[name](device)
    for weight in layer.parameters():
        nn.init.uniform_(weight, 0.5, 1.5) if weight.dim() == 1 else nn.init.normal_(weight, std=0.2)
    if packed:
        pack(layer)
    is_latent = isinstance(layer, LatentAttention)
    caches = [
        KVCache.allocate(
            num_layers=1,
            num_pages=7,
            page_size=PAGE,
            num_kv_heads=1 if is_latent else KV_HEADS,
            head_dim=RANK + HEAD_DIM if is_latent else HEAD_DIM,
            dtype=torch.float32,
            device=torch.device(device),
            shared_value_dim=RANK if is_latent else None,
        )
        for _ in range(2)
    ]
    x_BSH = torch.randn(B, S, HIDDEN, device=device)
    start_B = torch.tensor([1, 3], device=device)
    positions_BS = start_B[:, None] + torch.arange(S, device=device)
    table_BP = torch.tensor([[1, 2, 3], [4, 5, 6]], device=device)
    slots_BS = table_BP.gather(1, positions_BS // PAGE) * PAGE + positions_BS % PAGE
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), HEAD_DIM, device=device)(positions_BS, torch.float32)
    expected, found = (PagedAttend(cache, table_BP, start_B, slots_BS, (None,)) for cache in caches)
    layer(x_BSH, rotary, expected, 0)
    layer.store(x_BSH, rotary, found, 0)
    assert caches[0].keys_LNHD[0, slots_BS].all() and caches[0].values_LNHD[0, slots_BS].all(), "all were written"
    torch.testing.assert_close(caches[1].keys_LNHD, caches[0].keys_LNHD, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(caches[1].values_LNHD, caches[0].values_LNHD, atol=1e-5, rtol=1e-5)
