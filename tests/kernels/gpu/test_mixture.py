"""Experts for few tokens against the layer's own loop in float64; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.mixture import choose, fits, mixture

HALF = DTYPES[1]


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(6, 2), (130, 8), (3, 3)])
def test_the_best_are_chosen(num_experts: int, num_chosen: int, normalizes: bool) -> None:
    logits = torch.randn(7, num_experts, device=DEVICE)
    logits[0, : num_experts // 2] = 1.5
    experts, scores = choose(logits, num_chosen, normalizes=normalizes)
    expected, places = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(experts.long(), places[:, :num_chosen])
    expected = expected[:, :num_chosen]
    if normalizes:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_chosen"), [(1, 6, 2), (5, 4, 3), (17, 3, 2), (3, 40, 8)])
@pytest.mark.parametrize(("hidden", "width"), [(128, 128), (72, 40)])
def test_chosen_experts_are_summed(num_tokens: int, num_experts: int, num_chosen: int, hidden: int, width: int) -> None:
    x = torch.randn(num_tokens, hidden, dtype=HALF, device=DEVICE)
    gate_up = (torch.randn(num_experts, 2 * width, hidden, device=DEVICE) / hidden**0.5).to(HALF)
    down = (torch.randn(num_experts, hidden, width, device=DEVICE) / width**0.5).to(HALF)
    order = torch.stack([torch.randperm(num_experts, device=DEVICE) for _ in range(num_tokens)])
    experts = order[:, :num_chosen].int().contiguous()
    scores = torch.rand(num_tokens, num_chosen, device=DEVICE)
    out = mixture(x, experts, scores, gate_up, down)
    assert out.shape == (num_chosen, num_tokens, hidden)
    for token in range(num_tokens):
        for place, expert in enumerate(experts[token].tolist()):
            gate, up = F.linear(x[token].double(), gate_up[expert].double()).chunk(2)
            expected = F.linear(F.silu(gate) * up, down[expert].double()) * scores[token, place].double()
            assert (out[place, token] - expected).norm() / expected.norm() < 1e-2


def test_a_tokens_bits_do_not_depend_on_the_others() -> None:
    x = torch.randn(9, 128, dtype=HALF, device=DEVICE)
    gate_up = torch.randn(12, 128, 128, dtype=HALF, device=DEVICE) / 12
    down = torch.randn(12, 128, 64, dtype=HALF, device=DEVICE) / 12
    experts, scores = choose(torch.randn(9, 12, device=DEVICE), 4, normalizes=True)
    whole = mixture(x, experts, scores, gate_up, down)
    alone = mixture(x[3:4], experts[3:4], scores[3:4], gate_up, down)
    if DEVICE.type == "cuda":
        assert torch.equal(alone, whole[:, 3:4])
    assert torch.allclose(alone, whole[:, 3:4], atol=1e-4)


def test_what_it_leaves_to_others() -> None:
    assert fits(torch.empty(2, 32, 8, dtype=HALF), 8)
    assert not fits(torch.empty(2, 33, 8, dtype=HALF), 8)
    assert not fits(torch.empty(2, 4, 8), 8)
