"""Experts for few tokens against the layer's own loop in float64; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.mixture import fits, groups_plain, mixture
from outpace.kernels.gpu.routing import Routing, choose, group_pairs
from outpace.kernels.reuse import Reuse, among_open
from outpace.models.arch import MixtureConfig
from outpace.models.mixture import Mixture

HALF = DTYPES[1]


def plain(x: Tensor, experts: Tensor, scores: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """[C, T, H]."""
    out = torch.empty((scores.shape[1], *x.shape), device=DEVICE)
    mixture(x, groups_plain(experts, len(down)), scores, gate_up, down, out)
    return out


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(6, 2), (130, 8), (3, 3)])
def test_the_best_are_chosen(num_experts: int, num_chosen: int, normalizes: bool) -> None:
    logits = torch.randn(7, num_experts, device=DEVICE)
    logits[0, : num_experts // 2] = 1.5
    experts, scores = choose(logits, Routing(num_chosen, normalizes))
    expected, places = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(experts.long(), places[:, :num_chosen])
    expected = expected[:, :num_chosen]
    if normalizes:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", ["sigmoid", "groups", "softmax groups", "correction alone"])
@pytest.mark.parametrize("num_reused", [0, 2])
def test_routing_is_the_layers_own(case: str, parts: int, num_reused: int) -> None:
    """As DeepSeek and Kimi publish it, against `Mixture.choose`, which is held against transformers elsewhere."""
    fields: dict[str, Any] = {"num_chosen": 3, "normalizes": case != "softmax groups", "scale": 2.5}
    fields["scoring"] = "softmax" if case == "softmax groups" else "sigmoid"
    if "groups" in case:
        fields |= {"num_groups": 4, "num_chosen_groups": 2}
    corrects = case in ("groups", "correction alone")
    num_experts = 32 if "groups" in case else 24
    config = MixtureConfig(
        num_experts=num_experts,
        intermediate_size=8,
        layers=(True,),
        corrects=corrects,
        routes_in_float32=True,
        **fields,
    )
    layer = Mixture(num_experts, config, device=DEVICE)
    summands = torch.randn(parts, 9, num_experts, device=DEVICE)
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(num_experts))  # so that what it is given are its logits
        if layer.correction_E is not None:
            layer.correction_E.uniform_(-0.3, 0.3)
        reuse = Reuse(num_reused, 3)
        expected, scores = layer.choose(summands.sum(0), reuse)
    routing = Routing(**fields)
    assert routing.why_not(num_experts) is None
    found = choose(summands if parts > 1 else summands[0], routing, layer.correction_E, reuse=reuse)
    assert torch.equal(found[0].long(), expected)
    assert torch.allclose(found[1], scores, atol=1e-6)


def test_a_drafted_token_opens_few_experts() -> None:
    """Rows of three tokens: the first's experts are its best; the others' are open, and their own best among them."""
    ranked, reuse = torch.rand(6, 32), Reuse(3, 3)
    best, found = (scores.topk(4).indices for scores in (ranked, among_open(ranked, 4, reuse)))
    opened = {e for t in range(6) for e in best[t, : 4 if t % 3 == 0 else 1].tolist()}
    for token in range(6):
        assert set(found[token].tolist()) <= opened
        assert found[token, 0] == best[token, 0]
        if token % 3 == 0:
            assert torch.equal(found[token], best[token])
    assert len(found.unique()) < len(best.unique())
    assert torch.equal(among_open(ranked, 4, Reuse(3, 1)), ranked), "plain steps are exact"


def test_groups_that_the_kernel_does_not_know() -> None:
    assert "3 groups of 24 experts" in str(Routing(2, True, num_groups=3).why_not(24))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "rows"),
    [
        (1, 384, 8, 8),
        (3, 6, 2, 16),
        (17, 3, 2, 8),
        (9, 64, 8, 8),
        (64, 384, 8, 8),
        (64, 12, 8, 8),
        (128, 256, 8, 8),
        (128, 40, 8, 16),
    ],
)
def test_pairs_are_grouped_by_their_expert(
    num_tokens: int, num_experts: int, num_chosen: int, rows: int, ahead: bool
) -> None:
    ranked = torch.rand(num_tokens, num_experts) - torch.arange(num_experts) / num_experts  # some are popular
    chosen = ranked.topk(num_chosen).indices.int()
    found = group_pairs(chosen.contiguous().to(DEVICE), num_experts, rows, ahead=ahead)
    pairs: list[tuple[int, list[int]]] = []
    for expert in sorted(set(chosen.flatten().tolist())):
        own = (chosen.flatten() == expert).nonzero()[:, 0].tolist()
        pairs += [(expert, own[at : at + rows]) for at in range(0, len(own), rows)]
    unused = len(found.expert_G) - len(pairs)
    assert unused >= 0 and (num_tokens < 64 or max(len(own) for _, own in pairs) == rows)
    assert found.expert_G.tolist() == [expert for expert, _ in pairs] + [-1] * unused
    padded = [own + [-1] * (rows - len(own)) for _, own in pairs] + [[-1] * rows] * unused
    assert found.pair_GM.tolist() == padded


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_chosen"), [(1, 6, 2), (5, 4, 3), (17, 3, 2), (3, 40, 8)])
@pytest.mark.parametrize(("hidden", "width"), [(128, 128), (72, 40)])
def test_chosen_experts_are_summed(num_tokens: int, num_experts: int, num_chosen: int, hidden: int, width: int) -> None:
    x = torch.randn(num_tokens, hidden, dtype=HALF, device=DEVICE)
    gate_up = (torch.randn(num_experts, 2 * width, hidden, device=DEVICE) / hidden**0.5).to(HALF)
    down = (torch.randn(num_experts, hidden, width, device=DEVICE) / width**0.5).to(HALF)
    order = torch.stack([torch.randperm(num_experts, device=DEVICE) for _ in range(num_tokens)])
    experts = order[:, :num_chosen].int().contiguous()
    scores = torch.rand(num_tokens, num_chosen, device=DEVICE)
    out = plain(x, experts, scores, gate_up, down)
    for token in range(num_tokens):
        for place, expert in enumerate(experts[token].tolist()):
            gate, up = F.linear(x[token].double(), gate_up[expert].double()).chunk(2)
            expected = F.linear(F.silu(gate) * up, down[expert].double()) * scores[token, place].double()
            assert (out[place, token] - expected).norm() / expected.norm() < 1e-2


def test_a_tokens_bits_do_not_depend_on_the_others() -> None:
    x = torch.randn(9, 128, dtype=HALF, device=DEVICE)
    gate_up = torch.randn(12, 128, 128, dtype=HALF, device=DEVICE) / 12
    down = torch.randn(12, 128, 64, dtype=HALF, device=DEVICE) / 12
    experts, scores = choose(torch.randn(9, 12, device=DEVICE), Routing(4, True))
    whole = plain(x, experts, scores, gate_up, down)
    alone = plain(x[3:4], experts[3:4], scores[3:4], gate_up, down)
    if DEVICE.type == "cuda":
        assert torch.equal(alone, whole[:, 3:4])
    assert torch.allclose(alone, whole[:, 3:4], atol=1e-4)


def test_what_it_leaves_to_others() -> None:
    assert fits(torch.empty(2, 32, 8, dtype=HALF), 8)
    assert not fits(torch.empty(2, 33, 8, dtype=HALF), 8)
    assert not fits(torch.empty(2, 4, 8), 8)
