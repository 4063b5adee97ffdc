"""The paged attention kernel against a plain softmax in float64; without a GPU Triton's interpreter runs it."""

from __future__ import annotations

import pytest
import torch

from kernels.test_attention import HEADS, KV_HEADS, PAGE, D, dense
from outpace.kernels.kv import KVCache, slots_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STARTS = [0, 3, 17, 100]
NUM_PAGES = 36
"""A row's; its last pages are never reached."""

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.attention import paged_attention  # noqa: E402

# The interpreter multiplies bfloat16 as if it were integers.
DTYPES = [torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16]


def full_cache(dtype: torch.dtype) -> tuple[KVCache, torch.Tensor]:
    """Pages full of noise, the trash page among them, and a table that scatters four rows over them."""
    cache = KVCache.allocate(
        num_layers=1,
        num_pages=4 * NUM_PAGES + 1,
        page_size=PAGE,
        num_kv_heads=KV_HEADS,
        head_dim=D,
        dtype=dtype,
        device=DEVICE,
    )
    cache.keys_LNHD.normal_()
    cache.values_LNHD.normal_()
    return cache, (torch.randperm(4 * NUM_PAGES, device=DEVICE) + 1).view(4, NUM_PAGES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 5, 24])
@pytest.mark.parametrize(("window", "first"), [(None, 0), (None, 1), (5, 0), (70, 1)])
def test_equals_a_plain_softmax(dtype: torch.dtype, num_tokens: int, window: int | None, first: int) -> None:
    cache, table = full_cache(dtype)
    # Wider than the queries, as they are when they come out of one product with the keys.
    q = torch.randn(len(STARTS), num_tokens, HEADS + KV_HEADS, D, dtype=dtype, device=DEVICE)[:, :, :HEADS]
    keys, values = cache.keys_LNHD[0], cache.values_LNHD[0]
    start_B = torch.tensor(STARTS, device=DEVICE)
    first_B = torch.full_like(start_B, first) if first else None
    out = paged_attention(q, keys, values, table, start_B, page_size=PAGE, window=window, first_B=first_B)
    every = torch.arange(NUM_PAGES * PAGE, device=DEVICE)[None]
    for row, start in enumerate(STARTS):
        slots = slots_of(every, table[row : row + 1], PAGE)[0]
        expected = dense(q[row], keys[slots], values[slots], start, window, first)
        assert (out[row] - expected).norm() / expected.norm() < (1e-6 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 5])
def test_a_chunk_that_is_filled_up_keeps_its_bits(dtype: torch.dtype, window: int | None) -> None:
    """As in the graph of a short prefill: whatever stands behind its tokens, and however wide the table is."""
    cache, table = full_cache(dtype)
    num, filled = 17, 32
    q = torch.randn(len(STARTS), filled, HEADS, D, dtype=dtype, device=DEVICE)
    reach = -(-(max(STARTS) + num) // PAGE)
    start_B = torch.tensor(STARTS, device=DEVICE)
    alone, among = (
        paged_attention(
            q[:, :num_tokens], cache.keys_LNHD[0], cache.values_LNHD[0], pages, start_B, page_size=PAGE, window=window
        )
        for num_tokens, pages in ((num, table[:, :reach].contiguous()), (filled, table))
    )
    assert torch.equal(among[:, :num], alone)
