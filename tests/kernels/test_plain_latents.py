"""Latent attention in plain form is the absorbed one, and pays where many tokens follow."""

from __future__ import annotations

import pytest
import torch

from outpace.kernels import plain_latents
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import KVCache, places
from outpace.kernels.plain_latents import pays
from outpace.models.arch import LatentConfig, RopeConfig
from outpace.models.latent import LatentAttention
from outpace.models.rope import RotaryEmbedding

HIDDEN, HEADS, RANK, PLAIN, VALUE, TURNED, PAGE, B, S = 48, 3, 24, 12, 10, 8, 4, 3, 7
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("q_rank", [None, 16])
@torch.inference_mode()
def test_a_layer_in_plain_form_is_the_absorbed_one(
    q_rank: int | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with and without a past, over pages in any order."""
    shape = LatentConfig(kv_rank=RANK, q_rank=q_rank, plain_dim=PLAIN, value_dim=VALUE, scale=0.3, interleaved=False)
    layer = LatentAttention(HIDDEN, HIDDEN, shape, num_heads=HEADS, turned_dim=TURNED, device=device)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2)
    cache = KVCache.allocate(
        num_layers=1, num_pages=19, page_size=PAGE, num_kv_heads=1, head_dim=RANK + TURNED, dtype=torch.float32,
        device=torch.device(device), shared_value_dim=RANK,
    )  # fmt: skip
    cache.keys_LNHD.normal_()
    x_BSH = torch.randn(B, S, HIDDEN, device=device)
    table_BP = (torch.randperm(18, device=device) + 1).view(B, 6)
    start_B = torch.tensor([0, 5, 16], device=device)
    positions_BS, slots_BS = places(start_B, S, None, table_BP, PAGE)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), TURNED, device=device)(positions_BS, torch.float32)
    found = []
    for plain in (False, True):
        monkeypatch.setattr(plain_latents, "pays", lambda *_, plain=plain: plain)
        attend = PagedAttend(cache, table_BP, start_B, slots_BS, (None,))
        out = layer(x_BSH, rotary, attend, 0)
        found.append(out.sum(0) if out.dim() > x_BSH.dim() else out)
    torch.testing.assert_close(found[1], found[0], atol=2e-5, rtol=1e-4)


def test_it_pays_for_many_tokens_and_where_there_is_room() -> None:
    """By DeepSeek-V3's sizes, of a rank of eight: a position's keys and values are 131,072 products a head, and a query
    saves 768 at each."""
    kv_up = torch.empty(16, 256, 512, dtype=torch.bfloat16, device="meta")
    assert not pays(256, 32_768, kv_up)
    assert pays(257, 32_768, kv_up)
    assert not pays(2048, 32_769, kv_up), "256 MB are made of 32,768 positions"
