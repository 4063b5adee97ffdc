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


def full_cache(
    dtype: torch.dtype, num_rows: int = 4, num_pages: int = NUM_PAGES, page_size: int = PAGE
) -> tuple[KVCache, torch.Tensor]:
    """Pages full of noise, the trash page among them, and a table that scatters the rows over them."""
    cache = KVCache.allocate(
        num_layers=1,
        num_pages=num_rows * num_pages + 1,
        page_size=page_size,
        num_kv_heads=KV_HEADS,
        head_dim=D,
        dtype=dtype,
        device=DEVICE,
    )
    cache.keys_LNHD.normal_()
    cache.values_LNHD.normal_()
    return cache, (torch.randperm(num_rows * num_pages, device=DEVICE) + 1).view(num_rows, num_pages)


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


LONG_STARTS = [0, 65, 1000]
"""Behind the last one there are five splits of the least size."""


@pytest.mark.parametrize(
    ("dtype", "num_tokens", "splits", "window", "first", "page"),
    [
        (DTYPES[0], 64, 2, None, 0, 4),
        (DTYPES[0], 20, 4, None, 30, 64),
        (DTYPES[1], 17, 64, None, 0, 64),
        (DTYPES[1], 50, 8, 300, 0, 64),
        (DTYPES[1], 40, 4, 5, 30, 4),
    ],
)
def test_splits_of_the_past_add_up_to_a_plain_softmax(
    dtype: torch.dtype, num_tokens: int, splits: int, window: int | None, first: int, page: int
) -> None:
    num_pages = 1280 // page
    cache, table = full_cache(dtype, len(LONG_STARTS), num_pages, page)
    q = torch.randn(len(LONG_STARTS), num_tokens, HEADS, D, dtype=dtype, device=DEVICE)
    keys, values = cache.keys_LNHD[0], cache.values_LNHD[0]
    start_B = torch.tensor(LONG_STARTS, device=DEVICE)
    first_B = torch.full_like(start_B, first) if first else None
    out = paged_attention(
        q, keys, values, table, start_B, page_size=page, window=window, first_B=first_B, max_splits=splits
    )
    every = torch.arange(num_pages * page, device=DEVICE)[None]
    for row, start in enumerate(LONG_STARTS):
        slots = slots_of(every, table[row : row + 1], page)[0]
        expected = dense(q[row], keys[slots], values[slots], start, window, first)
        assert (out[row] - expected).norm() / expected.norm() < (1e-6 if dtype == torch.float32 else 5e-3), start


@pytest.mark.parametrize("start", [230, 995])
def test_a_chunk_that_is_filled_up_has_its_past_cut_alike(start: int) -> None:
    """Filled up, it reaches further than alone: into one split more, or one block more."""
    cache, table = full_cache(DTYPES[1], 2, 320)
    num, filled = 25, 32
    q = torch.randn(2, filled, HEADS, D, dtype=DTYPES[1], device=DEVICE)
    start_B = torch.tensor([start, 0], device=DEVICE)
    keys, values, reach = cache.keys_LNHD[0], cache.values_LNHD[0], -(-(start + num) // PAGE)
    alone, among = (
        paged_attention(q[:, :num_tokens], keys, values, pages, start_B, page_size=PAGE, window=None, max_splits=2)
        for num_tokens, pages in ((num, table[:, :reach].contiguous()), (filled, table))
    )
    assert torch.equal(among[:, :num], alone)


@pytest.mark.parametrize("num_tokens", [17, 64])
def test_masks_change_no_bits(num_tokens: int) -> None:
    """A first position of 0 hides nothing, but every block is masked."""
    cache, table = full_cache(DTYPES[1], 2, 5, 64)
    q = torch.randn(2, num_tokens, HEADS, D, dtype=DTYPES[1], device=DEVICE)
    start_B = torch.tensor([1, 200], device=DEVICE)
    masked, plain = (
        paged_attention(
            q, cache.keys_LNHD[0], cache.values_LNHD[0], table, start_B, page_size=64, window=None, first_B=first_B
        )
        for first_B in (torch.zeros_like(start_B), None)
    )
    assert torch.equal(masked, plain)
