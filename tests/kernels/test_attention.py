"""Paged attention against a plain softmax in float64, over scattered pages, ragged rows and windows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.kernels.accept import accept
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import KVCache, slots_of
from outpace.models.onednn import can_pack

PAGE, HEADS, KV_HEADS, D = 4, 6, 2, 8


def dense(q_SHD: Tensor, k_THD: Tensor, v_THD: Tensor, start: int, window: int | None, first: int) -> Tensor:
    q, k, v = q_SHD.double(), k_THD.double(), v_THD.double()
    out = torch.zeros_like(q)
    for s in range(q.shape[0]):
        own = start + s
        low = min(first, own) if window is None else max(own - window + 1, min(first, own))
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            weights = (k[low : own + 1, kv] @ q[s, head] / D**0.5).softmax(0)
            out[s, head] = weights @ v[low : own + 1, kv]
    return out


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("num_tokens", [1, 5, 16])
def test_paged_attention_equals_a_plain_softmax(window: int | None, first: int, num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    starts = [0, 3, 17]
    cache = KVCache.allocate(
        num_layers=2,
        num_pages=40,
        page_size=PAGE,
        num_kv_heads=KV_HEADS,
        head_dim=D,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    table = (torch.randperm(39, generator=generator)[: 3 * 9] + 1).view(3, 9)
    past = torch.randn(2, 3, 36, KV_HEADS, D, generator=generator)
    q, k, v = (torch.randn(3, num_tokens, n, D, generator=generator) for n in (HEADS, KV_HEADS, KV_HEADS))
    for row, start in enumerate(starts):
        slots = slots_of(torch.arange(start)[None], table[row : row + 1], PAGE)[0]
        cache.keys_LNHD[1][slots] = past[0, row, :start]
        cache.values_LNHD[1][slots] = past[1, row, :start]
    start_B = torch.tensor(starts)
    first_B = torch.full_like(start_B, first) if first else None
    slots = slots_of(start_B[:, None] + torch.arange(num_tokens), table, PAGE)
    out = PagedAttend(cache, table, start_B, slots, (None, window), first_B)(1, q, k, v)
    for row, start in enumerate(starts):
        keys = torch.cat((past[0, row, :start], k[row]))
        values = torch.cat((past[1, row, :start], v[row]))
        expected = dense(q[row], keys, values, start, window, first)
        assert (out[row] - expected).norm() / expected.norm() < 1e-6


@pytest.mark.skipif(not can_pack(torch.empty(1, 1, dtype=torch.bfloat16)), reason="this CPU multiplies no bf16")
def test_in_16_bits_a_token_sees_alone_what_it_sees_among_others() -> None:
    """To the bit, also where the others reach a page further: about one in 400 differs if nothing is done for it."""
    generator = torch.Generator().manual_seed(0)
    page, num_pages, heads, kv_heads, head_dim, num_tokens = 16, 40, 9, 3, 64, 16
    cache = KVCache.allocate(
        num_layers=1,
        num_pages=num_pages + 1,
        page_size=page,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    q, k, v = (
        torch.randn(1, page * num_pages, n, head_dim, generator=generator).bfloat16() * 2
        for n in (heads, kv_heads, kv_heads)
    )
    table = torch.arange(1, num_pages + 1)[None]

    def attend(start: int, num: int) -> Tensor:
        pages = table[:, : -(-(start + num) // page)]
        slots = slots_of(torch.arange(start, start + num)[None], pages, page)
        attend = PagedAttend(cache, pages, torch.tensor([start]), slots, (None,))
        return attend(0, *(x[:, start : start + num] for x in (q, k, v)))[0]

    attend(0, page * num_pages)
    for start in range(20, page * num_pages - num_tokens, 5):
        together = attend(start, num_tokens)
        for place in range(0, num_tokens, 3):
            assert torch.equal(attend(start + place, 1)[0], together[place]), (start, place)


def test_positions_outside_the_table_go_to_the_trash_page() -> None:
    table = torch.tensor([[7, 2]])
    slots = slots_of(torch.tensor([[-1, 0, 7, 8, 100]]), table, PAGE)
    assert [slot // PAGE for slot in slots[0].tolist()] == [0, 7, 2, 0, 0]


@pytest.mark.parametrize(
    ("drafts", "tokens", "limit", "emitted"),
    [
        ([5, 6, 7], [5, 6, 7, 8], 3, 4),
        ([5, 6, 7], [5, 9, 7, 8], 3, 2),
        ([4, 6, 7], [5, 6, 7, 8], 3, 1),
        ([5, 6, 7], [5, 6, 7, 8], 2, 3),
        ([5, 6, 7], [5, 6, 7, 8], 0, 1),
    ],
)
def test_accept_takes_the_matching_prefix_and_one(
    drafts: list[int], tokens: list[int], limit: int, emitted: int
) -> None:
    assert accept(torch.tensor([drafts]), torch.tensor([tokens]), torch.tensor([limit])).tolist() == [emitted]
