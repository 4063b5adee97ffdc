"""The kernel of plain latent attention against float64; without a GPU Triton's interpreter runs it."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE, DTYPES
from outpace.models.arch import RopeConfig
from outpace.models.rope import RotaryEmbedding, rotate

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.plain_latents import plain_latent_attention

N, P, V, D, R = 3, 12, 20, 8, 24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "starts"), [(5, [0, 3, 70]), (150, [0, 100])])
def test_equals_a_softmax_in_float64(dtype: torch.dtype, num_tokens: int, starts: list[int]) -> None:
    """Tiles with and without a past that all of their tokens see; what lies behind a row's last token is not seen."""
    B, T = len(starts), max(starts) + num_tokens + 9
    q = torch.randn(B, num_tokens, N, P + D, dtype=dtype, device=DEVICE)
    kv = torch.randn(B, T, N, P + V, dtype=dtype, device=DEVICE)
    latents = torch.randn(B, T, R + D, dtype=dtype, device=DEVICE)
    start_B = torch.tensor(starts, device=DEVICE)
    positions = start_B[:, None] + torch.arange(num_tokens, device=DEVICE)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), D, device=DEVICE)(positions, dtype)
    out = plain_latent_attention(q[..., :P], q[..., P:], rotary, kv, latents, start_B, scale=0.3)
    queries = torch.cat((q[..., :P], rotate(q[..., P:], rotary)), -1).double()
    keys = torch.cat((kv[..., :P], latents[:, :, None, R:].expand(-1, -1, N, -1)), -1).double()
    scores = 0.3 * torch.einsum("bsnq,btnq->bnst", queries, keys)
    hidden = torch.arange(T, device=DEVICE) > positions[..., None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    expected = torch.einsum("bnst,btnv->bsnv", weights, kv[..., P:].double())
    assert (out - expected).norm() / expected.norm() < (1e-5 if dtype == torch.float32 else 1e-2)
