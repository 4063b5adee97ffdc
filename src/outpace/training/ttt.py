"""Training-time test: the drafter drafts several tokens ahead from every position at once and is judged on each.

Step j of anchor t feeds true token t + 1 + j beside the drafter's own hidden state of step j - 1 (the target's fused
feature at step 0), at rotary position t + j, exactly as inference does while its drafts are right (EAGLE-3, Li et al.
2025, arXiv:2503.01840, section 3.2). `attention.StepAttend` supplies the keys that inference would see.

A draft counts only while all before it were accepted. `reach` is that chance, and part of a position's weight: where
an early draft is hopeless, later steps would train on states that inference never visits.

Legend: B rows, T positions a row, H hidden, N judged positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.models.drafter import Drafter
from outpace.models.layers import Attend
from outpace.training.attention import Kernel, StepAttend
from outpace.training.loss import Compare, compare_chunk, judge
from outpace.training.teacher import Lesson


def unroll(
    drafter: Drafter, tokens_BT: Tensor, features_BTF: Tensor, num_steps: int, attend: Attend
) -> Iterator[tuple[Tensor, Tensor]]:
    """The (next hidden, output) of each step, [B, T, H] each.

    The last 1 + j places of a row have no token left to feed at step j; they hold token 0 and mean nothing.
    """
    hidden_BTH = drafter.fuse(features_BTF)
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    for step in range(num_steps):
        fed_BT = torch.nn.functional.pad(tokens_BT[:, 1 + step :], (0, min(1 + step, tokens_BT.shape[1])))
        hidden_BTH, out_BTH = drafter(fed_BT, hidden_BTH, positions_BT + step, attend)
        yield hidden_BTH, out_BTH


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrollConfig:
    """How far drafts go and what each weighs; `recipe` says more of the first four."""

    num_steps: int
    decay: float
    reach: float
    adaptation: float
    chunk_rows: int
    """Positions whose logits exist at one time."""
    compare: Compare = compare_chunk


@dataclass(frozen=True, slots=True)
class Tested:
    """Sums over one batch, on the device; step by step [num_steps]. Divide by `num_judged`."""

    loss: Tensor
    cross_entropy: Tensor
    num_judged: Tensor
    num_agreeing: Tensor
    num_chained: Tensor
    """Drafts that agree, as do all before them: what greedy decoding would accept."""
    sum_accepted: Tensor


def run_test(
    drafter: Drafter,
    parameters: tuple[Tensor, ...],
    lesson: Lesson,
    config: UnrollConfig,
    kernel: Kernel,
    accepted_J: Tensor,
) -> Tested:
    """Runs all steps over a lesson.

    Args:
        drafter: in the dtype of the lesson's features.
        parameters: trainable parameters of its head.
        lesson: from `Teacher.teach`.
        config: the weights.
        kernel: see `attention.choose_kernel`.
        accepted_J: float32 [num_steps], recent acceptance of each step, from which λ follows.

    Returns:
        `loss` is differentiable: Σ decay^j loss_j / Σ decay^j.
    """
    attend = StepAttend(kernel)
    mixes = (-config.adaptation * accepted_J).exp()
    places = lesson.tokens_BT.numel()
    reach = torch.ones(places, device=lesson.tokens_BT.device)
    chained = torch.ones(places, dtype=torch.bool, device=lesson.tokens_BT.device)
    rows: list[tuple[Tensor, ...]] = []
    steps = unroll(drafter, lesson.tokens_BT, lesson.features_BTF, config.num_steps, attend)
    for step, (_, out_BTH) in enumerate(steps):
        anchors = lesson.anchors[step]
        judged = judge(
            drafter.logits,
            parameters,
            out_BTH.flatten(0, 1)[anchors],
            lesson.probs_NV,
            lesson.best_N,
            lesson.labels[step],
            1.0 - config.reach + config.reach * reach[anchors],
            mixes[step],
            chunk_rows=config.chunk_rows,
            compare=config.compare,
        )
        reach[anchors] *= judged.accepted_N
        chained[anchors] &= judged.agrees_N
        count = torch.full((), float(len(anchors)), device=reach.device)
        rows.append(
            (
                judged.loss,
                judged.cross_entropy,
                count,
                judged.agrees_N.sum(),
                chained[anchors].sum(),
                judged.accepted_N.sum(),
            )
        )
    return _gathered(rows, config.decay)


def _gathered(rows: list[tuple[Tensor, ...]], decay: float) -> Tested:
    weights = decay ** torch.arange(len(rows), device=rows[0][0].device)
    loss, *sums = (torch.stack([x.float() for x in column]) for column in zip(*rows, strict=True))
    return Tested((loss * weights).sum() / weights.sum(), *(x.detach() for x in sums))
