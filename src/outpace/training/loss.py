"""The loss of one training-time-test step, with the draft head inside it so that logits never pile up.

Per judged position, with the target's probabilities p (not renormalised: what lies outside the draft vocabulary is a
miss) and the drafter's q over the draft ids:

    loss = λ · (−Σ p log q)  +  (1 − λ) · (1 − Σ min(p, q))

The first term is cross-entropy on the soft distribution. EAGLE-3 masks positions whose best target token is outside
the draft vocabulary and renormalises p elsewhere; leaving p as it is does both smoothly, since a position then weighs
what the draft vocabulary can win there. The second term is the rejection rate itself. λ falls as the step's acceptance
α rises, λ = exp(−η α): the hybrid LK loss (Samarin et al. 2026, arXiv:2602.23881, with η = 3), where cross-entropy
leads while q is far from p and the rejection rate leads later. η = 0 is plain cross-entropy.

The gradient with respect to the logits is written down, computed chunk by chunk in the forward pass and pushed through
the head at once; only its products remain. So memory is one chunk of logits, and no logits are computed twice.

Legend: N judged positions, H hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Head = Callable[[Tensor], Tensor]
Compare = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Judged:
    """One step: the weighted mean loss (differentiable) and, per position, how the draft fared (not)."""

    loss: Tensor
    cross_entropy: Tensor
    agrees_N: Tensor
    """bool: the drafter's best token is the target's."""
    accepted_N: Tensor
    """Σ min(p, q): the chance that a sampled draft is accepted, misses counted."""


def judge(
    head: Head,
    parameters: tuple[Tensor, ...],
    out_NH: Tensor,
    probs_NV: Tensor,
    best_N: Tensor,
    labels_N: Tensor,
    weights_N: Tensor,
    mix: Tensor,
    *,
    chunk_rows: int,
    compare: Compare | None = None,
) -> Judged:
    """Judges drafts against the target.

    Args:
        head: hidden [n, H] → logits [n, Vd].
        parameters: the head's trainable parameters, which get gradients too.
        out_NH: what the head takes at the judged positions.
        probs_NV: the target's probabilities of the draft ids at all labelled positions.
        best_N: draft id of the target's best token at them, -1 if outside.
        labels_N: which of those each judged position is compared with.
        weights_N: float32 weight of each position; the loss is their weighted sum over N.
        mix: λ, a scalar tensor.
        chunk_rows: positions whose logits exist at one time.
        compare: `compare_chunk`, perhaps compiled.
    """
    loss, cross_entropy, agrees, accepted = _Judge.apply(  # type: ignore[no-untyped-call]
        head, chunk_rows, compare or compare_chunk, out_NH, probs_NV, best_N, labels_N, weights_N, mix, *parameters
    )
    return Judged(loss, cross_entropy, agrees, accepted)


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        chunk_rows: int,
        compare: Compare,
        out_NH: Tensor,
        probs_NV: Tensor,
        best_N: Tensor,
        labels_N: Tensor,
        weights_N: Tensor,
        mix: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        N = len(out_NH)
        grad_NH = torch.empty_like(out_NH)
        grad_parameters = [torch.zeros_like(p, dtype=torch.float32) for p in parameters]
        losses, entropies, agrees, accepted = [], [], [], []
        for first in range(0, N, chunk_rows):
            rows = slice(first, first + chunk_rows)
            labels, weights = labels_N[rows], weights_N[rows] / N
            with torch.enable_grad():
                out = out_NH[rows].detach().requires_grad_()
                logits = head(out)
            grad, loss, entropy, best, overlap = compare(logits.detach(), probs_NV[labels], weights, mix)
            grads = torch.autograd.grad(logits, (out, *parameters), grad)
            grad_NH[rows] = grads[0]
            for total, part in zip(grad_parameters, grads[1:], strict=True):
                total += part
            losses.append(loss)
            entropies.append(entropy)
            agrees.append(best == best_N[labels])
            accepted.append(overlap)
        ctx.grads = grad_NH, grad_parameters
        ctx.dtypes = [p.dtype for p in parameters]
        outputs = (
            _total(losses, mix),
            _total(entropies, mix),
            _joined(agrees, torch.bool, mix),
            _joined(accepted, torch.float32, mix),
        )
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        grad_NH, grad_parameters = ctx.grads
        ctx.grads = None
        scaled = [(g * grad).to(dtype) for g, dtype in zip(grad_parameters, ctx.dtypes, strict=True)]
        return None, None, None, (grad_NH * grad).to(grad_NH.dtype), None, None, None, None, None, *scaled


def compare_chunk(
    logits: Tensor, p: Tensor, weights: Tensor, mix: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One chunk [n, Vd], computed in float32.

    With S = Σ q over the ids where q < p, d(Σ min(p, q)) / d(logit i) = q_i (1[q_i < p_i] − S).

    Returns:
        The loss's gradient with respect to the logits, in their dtype; the sums of loss and cross-entropy; and, of each
        position, the best draft id and Σ min(p, q).
    """
    p = p.float()
    log_q = logits.float().log_softmax(-1)
    q = log_q.exp()
    entropy = -(p * log_q).sum(-1)
    below = q < p
    accepted = torch.where(below, q, p).sum(-1)
    overlap = torch.where(below, q, 0.0)
    grad_accepted = overlap - q * overlap.sum(-1, keepdim=True)
    grad = mix * (q * p.sum(-1, keepdim=True) - p) - (1.0 - mix) * grad_accepted
    loss = mix * entropy + (1.0 - mix) * (1.0 - accepted)
    return (
        (grad * weights[:, None]).to(logits.dtype),
        (loss * weights).sum(),
        (entropy * weights).sum(),
        logits.argmax(-1),
        accepted,
    )


def _total(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(parts).sum() if parts else like.new_zeros(())


def _joined(parts: list[Tensor], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_zeros(0, dtype=dtype)
