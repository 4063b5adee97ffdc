"""Verify: one target forward over tokens behind each row's cached past, at S = k+1 places. Prefill uses it too.

Shapes: B rows, S tokens a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import TRASH_PAGE, keep_boundaries
from outpace.speculation.pair import Pair
from outpace.speculation.span import Span
from outpace.speculation.state import State


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target made of the tokens."""

    hidden_BSH: Tensor
    """After the final norm."""
    logits_BSV: Tensor | None
    """If asked."""
    fused_BSH: Tensor | None
    """The drafter's fused features of the same positions, if asked."""
    touched: Tensor | None = None
    """With logits, how many experts it touched, over all layers of a mixture."""


def verify(
    pair: Pair,
    state: State,
    rows_B: Tensor,
    tokens_BS: Tensor,
    span: Span,
    *,
    with_features: bool,
    with_logits: bool = False,
    writes_target: bool = True,
    expert_reuse: int = 0,
) -> Verified:
    """Runs the target over the tokens, stores their K/V, and keeps what a drafter may be shown of them later.

    Args:
        pair: the models.
        state: written only at `recent` and, with features, at the `boundary_PH` of pages that the tokens complete.
        rows_B: the rows.
        tokens_BS: token ids.
        span: where they stand.
        with_features: fuse the target's taps for the drafter.
        with_logits: compute the logits of all places.
        writes_target: store the K/V; if not, they are there already.
        expert_reuse: see `Target.forward`.
    """
    written_BS = span.slots_BS if writes_target else torch.full_like(span.slots_BS, TRASH_PAGE)
    attend = PagedAttend(pair.cache, span.table_BP, span.start_B, written_BS, pair.target.config.windows)
    taps = pair.taps if state.recent is not None else ()
    hidden_BSH, features_BSF = pair.target(tokens_BS, span.positions_BS, attend, taps, expert_reuse)
    logits_BSV = pair.target.logits(hidden_BSH) if with_logits else None
    touched = pair.target.experts_touched() if with_logits else None
    if state.recent is None or features_BSF is None:
        return Verified(hidden_BSH, logits_BSV, None, touched)
    state.recent.keep(rows_B, span, tokens_BS, features_BSF)
    if not with_features:
        return Verified(hidden_BSH, logits_BSV, None, touched)
    assert pair.drafter is not None
    fused_BSH = pair.drafter.fuse(features_BSF)
    keep_boundaries(state.boundary_PH, fused_BSH, span.slots_BS, pair.cache.page_size)
    return Verified(hidden_BSH, logits_BSV, fused_BSH, touched)
