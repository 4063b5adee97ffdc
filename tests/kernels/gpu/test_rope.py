"""Turning and storing against the layers' own steps; without a GPU Triton's interpreter runs the kernel."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE, DTYPES
from outpace.kernels.kv import KVCache, write_kv
from outpace.models.arch import RopeConfig
from outpace.models.layers import RMSNorm
from outpace.models.rope import RotaryEmbedding, rotate

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.rope import turn_and_store

B, S, H, N, PAGE = 2, 3, 6, 2, 4


def cache(dtype: torch.dtype, head_dim: int) -> KVCache:
    return KVCache.allocate(
        num_layers=1, num_pages=6, page_size=PAGE, num_kv_heads=N, head_dim=head_dim, dtype=dtype, device=DEVICE
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 12])
@pytest.mark.parametrize("normed", [False, True])
def test_turned_and_stored_as_one_after_another(dtype: torch.dtype, head_dim: int, normed: bool) -> None:
    qkv = torch.randn(B, S, H + 2 * N, head_dim, dtype=dtype, device=DEVICE)
    qkv[0, 1, -1, 3] = torch.inf
    qkv[1, 2, H, 0] = torch.nan
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), head_dim, device=DEVICE)(
        torch.randint(0, 50, (B, S), device=DEVICE), dtype
    )
    slots = torch.tensor([[4, 5, 6], [17, 3, 9]], device=DEVICE)
    norms = [RMSNorm(head_dim, 1e-5, dtype=dtype, device=DEVICE) for _ in range(2)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    q, k, v = qkv.split((H, N, N), 2)
    if normed:
        q, k = norms[0].forward(q), norms[1].forward(k)
    expected_q = rotate(q, rotary)
    expected, found = cache(dtype, head_dim), cache(dtype, head_dim)
    write_kv(expected, 0, rotate(k, rotary), v, slots)
    given = (norms[0].weight.detach(), norms[1].weight.detach(), 1e-5) if normed else None
    found_q = turn_and_store(qkv, rotary, given, slots, found.keys_LNHD[0], found.values_LNHD[0])
    close = {"atol": 1e-6 if dtype == torch.float32 else 2e-2, "rtol": 1e-2 if dtype != torch.float32 else 1e-5}
    assert torch.allclose(found_q, expected_q, **close)
    assert torch.allclose(found.keys_LNHD, expected.keys_LNHD, **close)
    assert torch.equal(found.values_LNHD, expected.values_LNHD)
    alone = cache(dtype, head_dim)
    turn_and_store(qkv[:, :, H:].contiguous(), rotary, given, slots, alone.keys_LNHD[0], alone.values_LNHD[0])
    assert torch.equal(alone.keys_LNHD, found.keys_LNHD), "keys and values without queries"
    assert torch.equal(alone.values_LNHD, found.values_LNHD)
