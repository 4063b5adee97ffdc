"""Which experts a token goes through, and who goes through which expert, on the device.

Shapes: T tokens, E experts, C experts a token, P = T·C pairs (pair p is token p // C), G groups of up to M pairs.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.reuse import NO_REUSE, Reuse

_PLACES = 64
"""Pairs whose experts are looked at together, where experts are reused."""
_PLACED, _COMPARED = 16, 512
"""Pairs that a program puts into groups, and that it compares them with at a time."""


@triton.jit
def _in_best_groups(ranked_E, BLOCK_E: tl.constexpr, GROUPS: tl.constexpr, BEST: tl.constexpr, BY_TWO: tl.constexpr):
    """-inf for experts outside the best groups; a group is as good as its best expert, or its best two together."""
    ranked_GX = tl.reshape(ranked_E, (GROUPS, BLOCK_E // GROUPS))
    good_G, at_G = tl.max(ranked_GX, 1, return_indices=True, return_indices_tie_break_left=True)
    if BY_TWO:
        x = tl.arange(0, BLOCK_E // GROUPS)
        good_G += tl.max(tl.where(x[None, :] == at_G[:, None], float("-inf"), ranked_GX), 1)
    g = tl.arange(0, GROUPS)
    taken_G = g < 0
    for _ in tl.static_range(BEST):
        at = tl.argmax(tl.where(taken_G, float("-inf"), good_G), 0)
        taken_G = taken_G | (g == at)
    return tl.reshape(tl.where(taken_G[:, None], ranked_GX, float("-inf")), (BLOCK_E,))


@triton.jit(do_not_specialize=["num_tokens", "tokens_a_row"])
def _choose(
    logits_ptr, correction_ptr, first_ptr, expert_ptr, score_ptr, num_experts, num_elements, scale, num_tokens,
    tokens_a_row, C: tl.constexpr, REUSE: tl.constexpr, PARTS: tl.constexpr, SIGMOID: tl.constexpr,
    CORRECTS: tl.constexpr, NORMALIZES: tl.constexpr, GROUPS: tl.constexpr, BEST: tl.constexpr,
    PLACES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A token's best experts, the first of equals first, and their scores.

    With REUSE, only among those that some token opens, which `first_ptr` tells: a row's first token all of its best,
    the others their best but for REUSE; where groups leave too few of those, others follow.
    """
    launch_next(PDL)
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK_E)
    real_E = e < num_experts
    wait(PDL)
    place_E = logits_ptr + token * num_experts + e
    logit_E = tl.load(place_E, mask=real_E, other=float("-inf")).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        logit_E += tl.load(place_E + part * num_elements, mask=real_E, other=0.0)
    peak, total = 0.0, 1.0
    if SIGMOID:
        left_E = tl.sigmoid(logit_E)
    else:
        peak = tl.max(logit_E, 0)
        left_E = tl.exp(logit_E - peak)
        total = tl.sum(left_E, 0)
        left_E = left_E / total
    if CORRECTS:
        left_E += tl.load(correction_ptr + e, mask=real_E, other=0.0)
    left_E = tl.where(real_E, left_E, float("-inf"))
    if GROUPS > 1:
        left_E = _in_best_groups(left_E, BLOCK_E, GROUPS, BEST, CORRECTS)
    c = tl.arange(0, BLOCK_C)
    if REUSE > 0:
        open_E = tl.zeros((BLOCK_E,), tl.int32)
        for at in range(0, num_tokens * C, PLACES):
            pair = tl.minimum(at + tl.arange(0, PLACES), num_tokens * C - 1)
            other, place = pair // C, pair % C
            opens = tl.where(other % tokens_a_row == 0, C, C - REUSE)
            pair = other * C + tl.where(place < opens, place, 0)  # a token's best is always opened
            open_E += tl.histogram(tl.load(first_ptr + pair), BLOCK_E)
        left_E = tl.where(open_E > 0, left_E, left_E - 10000.0)
    chosen_C = tl.zeros((BLOCK_C,), tl.int32)
    for place in tl.static_range(C):
        _, at = tl.max(left_E, 0, return_indices=True, return_indices_tie_break_left=True)
        chosen_C = tl.where(c == place, at.to(tl.int32), chosen_C)
        left_E = tl.where(e == at, float("-inf"), left_E)
    place_C = logits_ptr + token * num_experts + chosen_C
    logit_C = tl.load(place_C, mask=c < C, other=float("-inf")).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        logit_C += tl.load(place_C + part * num_elements, mask=c < C, other=0.0)
    if SIGMOID:
        score_C = tl.sigmoid(logit_C)
    else:
        score_C = tl.exp(logit_C - peak) / total
    if NORMALIZES:
        score_C = score_C / (tl.sum(score_C, 0) + 1e-20)
    tl.store(expert_ptr + token * C + c, chosen_C, mask=c < C)
    tl.store(score_ptr + token * C + c, score_C * scale, mask=c < C)


@triton.jit(do_not_specialize=["num_pairs", "num_groups"])
def _group(
    chosen_ptr, expert_ptr, pair_ptr, num_pairs, num_groups, M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_E: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The experts that were chosen, ascending, and M pairs of each; one with more comes several times. -1 is none.

    A program places some of the pairs. Programs do not wait for each other, so each place has one writer: an expert's
    last pair fills up its last group, and groups that nobody needs belong to the pairs of their numbers.
    """
    launch_next(PDL)
    if not AHEAD:
        wait(PDL)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    e, m = tl.arange(0, BLOCK_E), tl.arange(0, M)
    real_P = p < num_pairs
    mine_P = tl.load(chosen_ptr + p, mask=real_P, other=-1, cache_modifier=".cg")
    rank_P, all_P = tl.zeros((BLOCK_P,), tl.int32), tl.zeros((BLOCK_P,), tl.int32)
    all_E = tl.zeros((BLOCK_E,), tl.int32)
    for at in range(0, num_pairs, BLOCK_Q):
        q = at + tl.arange(0, BLOCK_Q)
        theirs_Q = tl.load(chosen_ptr + q, mask=q < num_pairs, other=-2, cache_modifier=".cg")
        same_PQ = mine_P[:, None] == theirs_Q[None, :]
        all_P += tl.sum(same_PQ.to(tl.int32), 1)
        rank_P += tl.sum((same_PQ & (q[None, :] < p[:, None])).to(tl.int32), 1)
        all_E += tl.histogram(tl.maximum(theirs_Q, 0), BLOCK_E)
    all_E -= tl.where(e == 0, tl.cdiv(num_pairs, BLOCK_Q) * BLOCK_Q - num_pairs, 0)  # places behind the last pair
    groups_E = (all_E + M - 1) // M
    before_P = tl.sum(tl.where(e[None, :] < mine_P[:, None], groups_E[None, :], 0), 1)
    group_P = before_P + rank_P // M
    place_P = group_P * M + rank_P % M
    if AHEAD:
        wait(PDL)
    tl.store(expert_ptr + group_P, mine_P, mask=real_P & (rank_P % M == 0))
    tl.store(pair_ptr + place_P, p, mask=real_P)
    nobody_PM = tl.full((BLOCK_P, M), -1, tl.int32)
    is_last_P = real_P & (rank_P == all_P - 1)
    behind_PM = is_last_P[:, None] & (m[None, :] > (rank_P % M)[:, None])
    tl.store(pair_ptr + (group_P * M)[:, None] + m[None, :], nobody_PM, mask=behind_PM)
    unused_P = (p >= tl.sum(groups_E, 0)) & (p < num_groups)
    tl.store(expert_ptr + p, tl.full((BLOCK_P,), -1, tl.int32), mask=unused_P)
    tl.store(pair_ptr + (p * M)[:, None] + m[None, :], nobody_PM, mask=unused_P[:, None])


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router's logits become experts and scores; the fields are those of `MixtureConfig`."""

    num_chosen: int
    normalizes: bool
    scoring: str = "softmax"
    num_groups: int = 1
    num_chosen_groups: int = 1
    scale: float = 1.0

    def why_not(self, num_experts: int) -> str | None:
        """What of it these kernels do not know; None if they know it all."""
        if self.num_groups > 1 and (num_experts & (num_experts - 1) or self.num_groups & (self.num_groups - 1)):
            return f"{self.num_groups} groups of {num_experts} experts, which are no powers of two"
        return None


def choose(
    logits: Tensor, routing: Routing, correction_E: Tensor | None = None, *, reuse: Reuse = NO_REUSE
) -> tuple[Tensor, Tensor]:
    """Each token's experts, best first, int32 [T, C], and their scores, float32 [T, C].

    Args:
        logits: [T, E], or its summands [.., T, E] in float32; contiguous.
        routing: of which `why_not` knows nothing against.
        correction_E: float32, added to the scores to choose by; a group is then as good as its best two experts.
        reuse: of experts that other tokens open.
    """
    (T, E), C, device = logits.shape[-2:], routing.num_chosen, logits.device
    experts_TC = torch.empty((T, C), dtype=torch.int32, device=device)
    scores_TC = torch.empty((T, C), dtype=torch.float32, device=device)
    correction = logits if correction_E is None else correction_E
    block_e, first_TC = triton.next_power_of_2(E), experts_TC
    if reuse.num and reuse.tokens_a_row > 1:
        first_TC, _ = choose(logits, routing, correction_E)
    _choose[(T,)](
        logits, correction, first_TC, experts_TC, scores_TC, E, T * E, routing.scale, T, reuse.tokens_a_row, C=C,
        REUSE=reuse.num if reuse.tokens_a_row > 1 else 0, PARTS=1 if logits.dim() == 2 else len(logits),
        SIGMOID=routing.scoring == "sigmoid", CORRECTS=correction_E is not None, NORMALIZES=routing.normalizes,
        GROUPS=routing.num_groups, BEST=routing.num_chosen_groups, PLACES=_PLACES,
        BLOCK_C=triton.next_power_of_2(C), BLOCK_E=block_e,
        num_warps=1 if block_e <= 512 else 4, **overlapped(device),
    )  # fmt: skip
    return experts_TC, scores_TC


@dataclass(frozen=True, slots=True)
class Groups:
    """Who chose whom. There are G groups: as many as there can be, which the host knows without reading."""

    expert_G: Tensor
    """int32, ascending; -1 behind the last. One that more than M pairs chose comes several times."""
    pair_GM: Tensor
    """int32, the pairs of each; -1 behind the last."""


def group_pairs(experts_TC: Tensor, num_experts: int, rows: int, *, ahead: bool = False) -> Groups:
    """Groups the pairs of a token and an expert by their expert, `rows` in a group; a token's experts differ.

    With `ahead` experts are read ahead of the kernel before, see `chain`.
    """
    T, C = experts_TC.shape
    num_pairs = T * C
    num_groups = min(num_pairs, num_experts + (num_pairs // rows if rows < T else 0))
    expert_G, pair_GM = experts_TC.new_empty(num_groups), experts_TC.new_empty((num_groups, rows))
    block_q = min(_COMPARED, max(16, triton.next_power_of_2(num_pairs)))
    _group[(triton.cdiv(num_pairs, _PLACED),)](
        experts_TC, expert_G, pair_GM, num_pairs, num_groups, M=rows, BLOCK_P=_PLACED,
        BLOCK_Q=block_q, BLOCK_E=triton.next_power_of_2(num_experts), AHEAD=ahead, num_warps=4,
        **overlapped(experts_TC.device),
    )  # fmt: skip
    return Groups(expert_G, pair_GM)
