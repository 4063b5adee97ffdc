"""Latent attention against float64, and storing latents against the layer's own steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES
from outpace.kernels.kv import places, slots_of
from outpace.models.arch import RopeConfig
from outpace.models.rope import RotaryEmbedding, rotate

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.heads import multiply_heads
from outpace.kernels.gpu.latent import latent_attention
from outpace.kernels.gpu.latents import store_latents

R, D, PLAIN, PAGE, NUM_PAGES = 24, 8, 12, 4, 36
STARTS = [0, 3, 17, 100]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 4])
@pytest.mark.parametrize(
    ("heads", "splits", "firsts"), [(3, 1, None), (20, 4, None), (3, 1, [0, 5, 9, 2]), (20, 4, [0, 4, 17, 90])]
)
def test_equals_a_plain_softmax_over_what_was_stored(
    dtype: torch.dtype, num_tokens: int, heads: int, splits: int, firsts: list[int] | None
) -> None:
    """Tokens before the first position that a row sees (3 and 4, for `firsts` of 5) see themselves and what follows."""
    B = len(STARTS)
    cache = torch.randn(B * NUM_PAGES * PAGE + PAGE, R + D, dtype=dtype, device=DEVICE)
    table = (torch.randperm(B * NUM_PAGES, device=DEVICE) + 1).view(B, NUM_PAGES)
    start_B = torch.tensor(STARTS, device=DEVICE)
    positions, slots = places(start_B, num_tokens, None, table, PAGE)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), D, device=DEVICE)(positions, dtype)
    down = torch.randn(B, num_tokens, R + D, dtype=dtype, device=DEVICE)
    weight = torch.rand(R, dtype=dtype, device=DEVICE) + 0.5
    store_latents(down, rotary, None, weight, 1e-6, slots, cache)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    stored = cache[slots]
    assert torch.allclose(stored[..., :R], F.rms_norm(down[..., :R], (R,), weight, 1e-6), **close)
    assert torch.allclose(stored[..., R:], rotate(down[:, :, None, R:], rotary)[:, :, 0], **close)

    q = torch.randn(B, num_tokens, heads, PLAIN + D, dtype=dtype, device=DEVICE)
    absorbed = torch.randn(B, num_tokens, heads, R, dtype=dtype, device=DEVICE)
    out = latent_attention(
        absorbed,
        q[..., PLAIN:],
        rotary,
        cache,
        table,
        start_B,
        scale=0.3,
        page_size=PAGE,
        max_splits=splits,
        first_B=None if firsts is None else torch.tensor(firsts, device=DEVICE),
    )
    queries = torch.cat((absorbed, rotate(q[..., PLAIN:], rotary)), -1).double()
    every = torch.arange(NUM_PAGES * PAGE, device=DEVICE)[None]
    for row, start in enumerate(STARTS):
        keys = cache[slots_of(every, table[row : row + 1], PAGE)[0]].double()
        for token in range(num_tokens):
            own = start + token
            seen = keys[min(own, 0 if firsts is None else firsts[row]) : own + 1]
            weights = (0.3 * queries[row, token] @ seen.T).softmax(-1)
            expected = weights @ seen[:, :R]
            assert (out[row, token] - expected).norm() / expected.norm() < (1e-5 if dtype == torch.float32 else 1e-2)


def test_what_is_not_finite_is_stored_as_zero() -> None:
    cache = torch.ones(8, R + D, device=DEVICE)
    down = torch.randn(1, 2, R + D, device=DEVICE)
    down[0, 1, R + 1] = torch.nan
    positions, slots = torch.tensor([[4, 5]], device=DEVICE), torch.tensor([[2, 6]], device=DEVICE)
    rotary = RotaryEmbedding(RopeConfig(), D, device=DEVICE)(positions, torch.float32)
    store_latents(down, rotary, None, torch.ones(R, device=DEVICE), 1e-6, slots, cache)
    assert cache.isfinite().all()
    assert (cache[[0, 1, 3, 4, 5, 7]] == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 3])
def test_the_queries_latent_is_normed_beside(dtype: torch.dtype, parts: int) -> None:
    Q = 20
    pages, slots = torch.zeros(2, 8, R + D, dtype=dtype, device=DEVICE), torch.tensor([[3, 6, 1]], device=DEVICE)
    rotary = RotaryEmbedding(RopeConfig(), D, device=DEVICE)(slots, dtype)
    q_weight, weight = (torch.rand(size, dtype=dtype, device=DEVICE) + 0.5 for size in (Q, R))
    summands = torch.randn(parts, 1, 3, Q + R + D, dtype=dtype if parts == 1 else torch.float32, device=DEVICE)
    down = summands.sum(0).to(dtype)
    given = summands[0] if parts == 1 else summands
    queries = store_latents(given, rotary, q_weight, weight, 1e-6, slots, pages[0])
    assert queries is not None
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    assert torch.allclose(queries, F.rms_norm(down[..., :Q], (Q,), q_weight, 1e-6), **close)
    assert store_latents(down[..., Q:].contiguous(), rotary, None, weight, 1e-6, slots, pages[1]) is None
    assert torch.allclose(pages[0], pages[1], **close)


@pytest.mark.parametrize(("rows", "heads", "outputs", "inputs"), [(1, 8, 96, 40), (5, 3, 40, 200), (20, 2, 16, 128)])
def test_each_head_has_its_own_product(rows: int, heads: int, outputs: int, inputs: int) -> None:
    x = torch.randn(rows, heads, inputs + 8, device=DEVICE).to(DTYPES[1])[..., :inputs]
    weight = torch.randn(heads, inputs, outputs + 8, device=DEVICE).to(DTYPES[1])[..., 8:]
    expected = torch.einsum("mnk,nko->mno", x.double(), weight.double())
    across = multiply_heads(x, weight.transpose(1, 2))
    along = multiply_heads(x, weight.transpose(1, 2).contiguous())
    for found in (across, along):
        assert found.is_contiguous() and (found - expected).norm() / expected.norm() < 5e-3
    alone = multiply_heads(x[-1:], weight.transpose(1, 2))
    assert torch.equal(alone, across[-1:]) or DEVICE.type == "cpu"
