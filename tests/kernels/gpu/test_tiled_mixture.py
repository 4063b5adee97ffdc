"""Experts for many tokens against each pair's product in float64; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE
from kernels.gpu.test_packed_mixture import HALF, experts

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu import tiled_mixture
from outpace.kernels.gpu.sorting import sort_pairs
from outpace.kernels.gpu.tiled_mixture import mixture_tiled, slice_of, tile_of, tile_with
from outpace.kernels.packed import PackedWeight

Weight = Tensor | PackedWeight


def routed(num_tokens: int, num_experts: int, num_chosen: int) -> Tensor:
    """A token's experts differ."""
    ranked = torch.rand(num_tokens, num_experts, device=DEVICE)
    return ranked.topk(num_chosen).indices.int().contiguous()


def plain(number: int, outputs: int, inputs: int, dtype: torch.dtype = HALF) -> Tensor:
    return (torch.randn(number, outputs, inputs, device=DEVICE) / inputs**0.5).to(dtype)


def expected(x: Tensor, chosen: Tensor, scores: Tensor, gate_up: Weight, down: Weight) -> Tensor:
    """In float64, expert by expert."""
    first, second = (w if isinstance(w, Tensor) else w.unpacked() for w in (gate_up, down))
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in range(len(first)):
        tokens, places = torch.where(chosen == expert)
        gate, up = F.linear(x[tokens].double(), first[expert].double()).chunk(2, -1)
        y = F.linear(F.silu(gate) * up, second[expert].double())
        out.index_add_(0, tokens, y * scores[tokens, places, None].double())
    return out


def far(found: Tensor, expected: Tensor) -> float:
    """The largest relative error of a token."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "rows"),
    [(1, 5, 1, 16), (65, 24, 8, 16), (300, 3, 2, 32), (97, 1, 1, 64), (2100, 6, 2, 64)],
)
def test_tiles_are_every_pair_once_by_expert(num_tokens: int, num_experts: int, num_chosen: int, rows: int) -> None:
    chosen = routed(num_tokens, num_experts, num_chosen)
    tiles = sort_pairs(chosen, num_experts, rows)
    of_pair = chosen.flatten()
    assert torch.equal(tiles.pair_P.long(), of_pair.sort(stable=True).indices)
    counts = torch.bincount(of_pair, minlength=num_experts).tolist()
    wanted, begin = [], 0
    for expert, count in enumerate(counts):
        wanted += [(expert, begin + at, begin + min(at + rows, count)) for at in range(0, count, rows)]
        begin += count
    described = list(zip(*(t.tolist() for t in (tiles.expert_G, tiles.begin_G, tiles.end_G)), strict=True))
    assert described[: len(wanted)] == wanted
    assert all(expert == -1 and begin == end for expert, begin, end in described[len(wanted) :])


@pytest.mark.parametrize(("num_tokens", "to_one"), [(64, True), (65, False), (130, True)])
def test_all_tokens_may_go_through_one_expert(num_tokens: int, to_one: bool) -> None:
    chosen = torch.full((num_tokens, 1), 6 if to_one else 0, dtype=torch.int32, device=DEVICE)
    tiles = sort_pairs(chosen, 7, 32)
    assert torch.equal(tiles.pair_P.long(), torch.arange(num_tokens, device=DEVICE))
    assert (tiles.expert_G >= 0).sum() == -(-num_tokens // 32)


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "hidden", "width", "pairs"),
    [
        (65, 6, 2, 128, 128, 16),
        (70, 3, 3, 72, 40, 64),
        (70, 12, 8, 64, 24, 32),
        (66, 2, 1, 264, 8, 128),
        (7, 20, 3, 64, 136, 16),
    ],
)
def test_chosen_experts_are_summed(
    num_tokens: int, num_experts: int, num_chosen: int, hidden: int, width: int, pairs: int
) -> None:
    x = torch.randn(num_tokens, hidden, dtype=HALF, device=DEVICE)
    gate_up, down = plain(num_experts, 2 * width, hidden), plain(num_experts, hidden, width)
    chosen, scores = routed(num_tokens, num_experts, num_chosen), torch.rand(num_tokens, num_chosen, device=DEVICE)
    also = torch.randn_like(x)
    wanted = expected(x, chosen, scores, gate_up, down)
    found = mixture_tiled(x, chosen, scores, gate_up, down, tile=tile_with(pairs, 16))
    assert found.dtype == HALF and far(found, wanted) < 1e-2
    assert far(mixture_tiled(x, chosen, scores, gate_up, down, also_TH=also), wanted + also) < 1e-2


@pytest.mark.parametrize("empty", ["first", "last", "all but one"])
def test_experts_that_nobody_chose(empty: str) -> None:
    x = torch.randn(70, 64, dtype=HALF, device=DEVICE)
    gate_up, down = plain(8, 64, 64), plain(8, 64, 32)
    among = {"first": (3, 5), "last": (0, 2), "all but one": (7, 1)}[empty]
    chosen = routed(70, among[1], min(2, among[1])) + among[0]
    scores = torch.rand(chosen.shape, device=DEVICE)
    gate_up[: among[0]], gate_up[among[0] + among[1] :] = torch.nan, torch.nan
    found = mixture_tiled(x, chosen, scores, gate_up, down)
    assert far(found, expected(x, chosen, scores, gate_up, down)) < 1e-2


def test_float32_is_multiplied_in_float32() -> None:
    x = torch.randn(40, 72, device=DEVICE)
    gate_up, down = plain(5, 2 * 24, 72, torch.float32), plain(5, 72, 24, torch.float32)
    chosen, scores = routed(40, 5, 3), torch.rand(40, 3, device=DEVICE)
    assert far(mixture_tiled(x, chosen, scores, gate_up, down), expected(x, chosen, scores, gate_up, down)) < 1e-5


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "hidden", "width", "group", "zeros", "pairs"),
    [
        (19, 3, 2, 288, 40, 32, True, 8),
        (65, 2, 2, 512, 64, 32, False, 64),
        (67, 2, 2, 256, 96, 128, True, 128),
        (33, 3, 2, 200, 40, None, False, 16),
        (70, 3, 1, 256, 128, None, False, 64),
    ],
)
def test_packed_experts_are_summed(
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    hidden: int,
    width: int,
    group: int | None,
    zeros: bool,
    pairs: int,
) -> None:
    x = torch.randn(num_tokens, hidden, dtype=HALF, device=DEVICE)
    gate_up = experts(num_experts, 2 * width, hidden, group=group, zeros=zeros)
    down = experts(num_experts, hidden, width, group=32 if group and width % group else group, zeros=zeros)
    chosen, scores = routed(num_tokens, num_experts, num_chosen), torch.rand(num_tokens, num_chosen, device=DEVICE)
    tile = tile_with(pairs, gate_up.bits)
    found = mixture_tiled(x, chosen, scores, gate_up, down, tile=tile)
    assert far(found, expected(x, chosen, scores, gate_up, down)) < 1e-2


@pytest.mark.parametrize("form", ["plain", "int4", "fp8"])
def test_ranks_shares_add_up(form: str) -> None:
    """Experts cut in three along their intermediate size, to a width that fills no tile."""
    x, chosen = torch.randn(17, 64, dtype=HALF, device=DEVICE), routed(17, 4, 2)
    scores, total = torch.rand(17, 2, device=DEVICE), torch.zeros(17, 64, device=DEVICE)
    gates, ups, downs = [], [], []
    for _ in range(3):
        gate_up: Weight = plain(4, 2 * 20, 64)
        down: Weight = plain(4, 64, 20)
        if form != "plain":
            group = 32 if form == "int4" else None
            gate_up, down = experts(4, 2 * 20, 64, group=group), experts(4, 64, 20, group=group)
        total += mixture_tiled(x, chosen, scores, gate_up, down)
        first, second = (w if isinstance(w, Tensor) else w.unpacked() for w in (gate_up, down))
        gates.append(first[:, :20])
        ups.append(first[:, 20:])
        downs.append(second)
    whole = expected(x, chosen, scores, torch.cat((*gates, *ups), 1), torch.cat(downs, 2))
    assert far(total, whole) < 1e-2


@pytest.mark.parametrize("group", [0, 32, None])
def test_a_tokens_bits_do_not_depend_on_the_others(group: int | None) -> None:
    """In another order, and beside tokens that go elsewhere."""
    T, hidden, width = 21, 128, 32
    gate_up = plain(3, 2 * width, hidden) if group == 0 else experts(3, 2 * width, hidden, group=group)
    down = plain(3, hidden, width) if group == 0 else experts(3, hidden, width, group=group)
    x, chosen = torch.randn(T, hidden, dtype=HALF, device=DEVICE), routed(T, 3, 2)
    scores = torch.rand(T, 2, device=DEVICE)
    whole = mixture_tiled(x, chosen, scores, gate_up, down)
    order = torch.randperm(T, device=DEVICE)
    turned = mixture_tiled(x[order], chosen[order].contiguous(), scores[order].contiguous(), gate_up, down)
    others = chosen.clone()
    others[5:] = torch.tensor([2, 0], dtype=torch.int32, device=DEVICE)
    beside = mixture_tiled(x, others, scores, gate_up, down)
    if DEVICE.type == "cuda":
        assert torch.equal(turned, whole[order]) and torch.equal(beside[:5], whole[:5])
    assert torch.allclose(turned, whole[order], atol=2e-3)  # NumPy's products round by the column
    assert torch.allclose(beside[:5], whole[:5], atol=2e-3)


@pytest.mark.parametrize("group", [0, 32])
def test_slices_change_nothing(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 192, dtype=HALF, device=DEVICE)
    gate_up = plain(3, 48, 192) if group == 0 else experts(3, 48, 192, group=group)
    down = plain(3, 192, 24) if group == 0 else experts(3, 192, 24, group=group)
    chosen, scores = routed(20, 3, 2), torch.rand(20, 2, device=DEVICE)
    also = torch.randn_like(x)
    whole = mixture_tiled(x, chosen, scores, gate_up, down, also_TH=also)
    monkeypatch.setattr(tiled_mixture, "_SLICE_BYTES", 40 * 128 * 2)
    assert slice_of(192, 40, 2) == 128
    assert torch.equal(mixture_tiled(x, chosen, scores, gate_up, down, also_TH=also), whole)


@pytest.mark.parametrize("num_tokens", [65, 2048, 8192, 1 << 20])
@pytest.mark.parametrize("hidden", [64, 4096, 7168])
def test_slices_are_few_and_even(num_tokens: int, hidden: int) -> None:
    width = slice_of(hidden, 8 * num_tokens, 2)
    assert width == hidden or width % 128 == 0
    assert 8 * num_tokens * width * 2 <= max(1 << 28, 8 * num_tokens * 128 * 2)
    assert width * -(-hidden // width) < hidden + 128 * -(-hidden // width)


def test_tiles_follow_the_pairs_of_an_expert() -> None:
    tokens = (65, 192, 193, 1536, 2048, 8192, 1 << 20)
    assert [tile_of(8 * num, 384, 4).pairs for num in tokens] == [8, 8, 16, 32, 64, 64, 64]
    assert [tile_of(1 << 20, 8, bits).pairs for bits in (8, 16, 32)] == [64, 128, 32]
    assert [tile_of(1, 8, bits).pairs for bits in (8, 16, 32)] == [8, 16, 16]
