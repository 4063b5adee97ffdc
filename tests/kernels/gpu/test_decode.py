"""Decode attention from the product on, against float64; without a GPU Triton's interpreter runs the kernels."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE, DTYPES, STARTS, full_cache
from kernels.test_attention import HEADS, KV_HEADS, PAGE, D, dense
from outpace.kernels.kv import places, slots_of
from outpace.models.arch import RopeConfig
from outpace.models.layers import RMSNorm
from outpace.models.rope import RotaryEmbedding, rotate

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.decode import MAX_QUERIES, decode_attention, fits

WIDTH = HEADS + 2 * KV_HEADS


def product(num_tokens: int, dtype: torch.dtype, parts: int) -> torch.Tensor:
    """Summands in float32 that add up to numbers which `dtype` holds, or those numbers."""
    whole = torch.randn(len(STARTS), num_tokens, WIDTH * D, device=DEVICE).to(dtype)
    if parts == 1:
        return whole
    pieces = torch.randint(-4, 5, (parts - 1, *whole.shape), device=DEVICE).float()
    return torch.cat((pieces, (whole.float() - pieces.sum(0))[None]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize(("window", "first", "splits", "parts"), [(None, 0, 1, 1), (None, 1, 4, 2), (70, 0, 2, 1)])
@pytest.mark.parametrize("normed", [False, True])
def test_equals_norm_turn_store_and_softmax(
    dtype: torch.dtype, num_tokens: int, window: int | None, first: int, splits: int, parts: int, normed: bool
) -> None:
    cache, table = full_cache(dtype)
    keys, values = cache.keys_LNHD[0], cache.values_LNHD[0]
    start_B = torch.tensor(STARTS, device=DEVICE)
    qkv = product(num_tokens, dtype, parts)
    positions, slots = places(start_B, num_tokens, None, table, PAGE)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), D, device=DEVICE)(positions, dtype)
    norms = [RMSNorm(D, 1e-5, dtype=dtype, device=DEVICE) for _ in range(2)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    first_B = torch.full_like(start_B, first) if first else None
    out = decode_attention(
        qkv,
        rotary,
        (norms[0].weight.detach(), norms[1].weight.detach(), 1e-5) if normed else None,
        slots,
        keys,
        values,
        table,
        start_B,
        num_heads=HEADS,
        page_size=PAGE,
        window=window,
        first_B=first_B,
        max_splits=splits,
    ).view(len(STARTS), num_tokens, HEADS, D)
    whole = (qkv if parts == 1 else qkv.sum(0)).to(dtype).view(len(STARTS), num_tokens, WIDTH, D)
    q, k, v = whole.split((HEADS, KV_HEADS, KV_HEADS), 2)
    if normed:
        q, k = norms[0].forward(q), norms[1].forward(k)
    q, k = rotate(q, rotary), rotate(k, rotary)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    assert torch.allclose(keys[slots], k, **close)
    assert torch.equal(values[slots], v)
    every = torch.arange(table.shape[1] * PAGE, device=DEVICE)[None]
    for row, start in enumerate(STARTS):
        here = slots_of(every, table[row : row + 1], PAGE)[0]
        expected = dense(q[row], keys[here], values[here], start, window, first)
        assert (out[row] - expected).norm() / expected.norm() < (1e-5 if dtype == torch.float32 else 1e-2)


def test_what_is_not_finite_is_kept_as_zero() -> None:
    cache, table = full_cache(torch.float32)
    keys, values = cache.keys_LNHD[0], cache.values_LNHD[0]
    start_B = torch.tensor(STARTS, device=DEVICE)
    qkv = product(1, torch.float32, 1)
    qkv.view(len(STARTS), WIDTH, D)[0, HEADS, 0] = torch.nan
    qkv.view(len(STARTS), WIDTH, D)[1, HEADS + KV_HEADS, 3] = torch.inf
    positions, slots = places(start_B, 1, None, table, PAGE)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), D, device=DEVICE)(positions, torch.float32)
    decode_attention(
        qkv, rotary, None, slots, keys, values, table, start_B, num_heads=HEADS, page_size=PAGE, window=None
    )
    assert keys[slots].isfinite().all()
    assert values[slots].isfinite().all()
    assert values[slots[1, 0], 0, 3] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 16])
def test_a_token_has_the_same_bits_alone_and_among_others(splits: int) -> None:
    """A verify of five, then its last three as a verify of three, then its last as a plain step."""
    dtype = torch.bfloat16
    cache, table = full_cache(dtype)
    keys, values = cache.keys_LNHD[0], cache.values_LNHD[0]
    start_B = torch.tensor([0, 3, 17, 100], device=DEVICE)
    qkv = product(5, dtype, 1)
    outputs = []
    for skipped in (0, 2, 4):
        part = qkv[:, skipped:].contiguous()
        begin_B = start_B + skipped
        positions, slots = places(begin_B, 5 - skipped, None, table, PAGE)
        rotary = RotaryEmbedding(RopeConfig(theta=100.0), D, device=DEVICE)(positions, dtype)
        out = decode_attention(
            part, rotary, None, slots, keys, values, table, begin_B, num_heads=HEADS, page_size=PAGE, window=None,
            max_splits=splits,
        )  # fmt: skip
        outputs.append(out[:, -1])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.gpu
def test_very_many_rows_attend_as_few_do() -> None:
    """They read the past in one split, few in many."""
    rows, length, heads, kv_heads, dtype = 100, 200, 32, 8, torch.bfloat16
    pages = -(-(length + 2) // 64)
    keys, values = (torch.randn((rows * pages + 1) * 64, kv_heads, 128, device=DEVICE, dtype=dtype) for _ in range(2))
    table = torch.arange(1, rows * pages + 1, device=DEVICE).view(rows, pages)
    start_B = torch.randint(length, (rows,), device=DEVICE)
    qkv = torch.randn(rows, 2, (heads + 2 * kv_heads) * 128, device=DEVICE, dtype=dtype)
    positions, slots = places(start_B, 2, None, table, 64)
    cos, sin = RotaryEmbedding(RopeConfig(theta=100.0), 128, device=DEVICE)(positions, dtype)

    def attend(some: slice) -> torch.Tensor:
        return decode_attention(
            qkv[some], (cos[some], sin[some]), None, slots[some], keys, values, table[some], start_B[some],
            num_heads=heads, page_size=64, window=None,
        )  # fmt: skip

    whole = attend(slice(None))
    few = torch.cat([attend(slice(at, at + 8)) for at in range(0, rows, 8)])
    assert (whole - few).norm() / few.norm() < 1e-2


def test_how_many_tokens_it_takes() -> None:
    assert fits(MAX_QUERIES // 4, 32, 8)
    assert not fits(MAX_QUERIES // 4 + 1, 32, 8)
