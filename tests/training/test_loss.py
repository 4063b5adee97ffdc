"""The written-down gradient of the loss against autograd on its formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.training.loss import judge

N, H, VD, LABELS = 11, 6, 9, 7


def formula(logits: Tensor, p: Tensor, weights: Tensor, mix: float) -> Tensor:
    q = logits.softmax(-1)
    entropy = -(p * logits.log_softmax(-1)).sum(-1)
    accepted = torch.minimum(p, q).sum(-1)
    return ((mix * entropy + (1 - mix) * (1 - accepted)) * weights).mean()


@pytest.mark.parametrize("mix", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
def test_loss_and_gradients(mix: float, chunk_rows: int) -> None:
    weight = torch.randn(VD, H, requires_grad=True)
    out = torch.randn(N, H, requires_grad=True)
    probs = torch.randn(LABELS, VD + 4).mul(2).softmax(-1)[:, :VD]
    labels = torch.randint(LABELS, (N,))
    weights = torch.rand(N)
    best = probs.argmax(-1)
    judged = judge(
        lambda x: x @ weight.T, (weight,), out, probs, best, labels, weights, torch.tensor(mix), chunk_rows=chunk_rows
    )
    exact_out, exact_weight = (x.detach().double().requires_grad_() for x in (out, weight))
    logits = exact_out @ exact_weight.T
    expected = formula(logits, probs[labels].double(), weights.double(), mix)
    assert float(judged.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    got = torch.autograd.grad(judged.loss * 3.0, (out, weight))
    want = torch.autograd.grad(expected * 3.0, (exact_out, exact_weight))
    for ours, theirs in zip(got, want, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    torch.testing.assert_close(judged.agrees_N, logits.argmax(-1) == best[labels])
    overlap = torch.minimum(probs[labels].double(), logits.softmax(-1)).sum(-1)
    torch.testing.assert_close(judged.accepted_N.double(), overlap, rtol=1e-5, atol=1e-6)


def test_a_best_token_outside_the_draft_vocabulary_is_a_miss() -> None:
    weight, out = torch.randn(VD, H), torch.randn(3, H)
    probs = torch.full((1, VD), 0.02)
    judged = judge(
        lambda x: x @ weight.T,
        (),
        out,
        probs,
        torch.tensor([-1]),
        torch.zeros(3, dtype=torch.int64),
        torch.ones(3),
        torch.tensor(1.0),
        chunk_rows=8,
    )
    assert not judged.agrees_N.any()
    assert bool((judged.accepted_N <= 0.02 * VD + 1e-6).all())


def test_no_positions_is_no_loss() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    judged = judge(
        lambda x: x @ torch.ones(H, VD),
        (),
        torch.zeros(0, H, requires_grad=True),
        torch.zeros(1, VD),
        torch.zeros(1, dtype=torch.int64),
        empty,
        torch.zeros(0),
        torch.tensor(1.0),
        chunk_rows=8,
    )
    assert float(judged.loss.detach()) == 0.0
    assert len(judged.accepted_N) == 0
