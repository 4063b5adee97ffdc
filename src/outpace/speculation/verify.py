"""Verify: one target forward over tokens behind each row's cached past, at S = k+1 places. Prefill uses it too.

Shapes: B rows, S tokens a row, H hidden size, V vocabulary, P pages a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import TRASH_PAGE, slots_of
from outpace.speculation.pair import Pair
from outpace.speculation.state import State


@dataclass(frozen=True, slots=True)
class Verified:
    """Target hidden states after the final norm, and the drafter's fused features of the same positions if asked."""

    hidden_BSH: Tensor
    fused_BSH: Tensor | None


def verify(
    pair: Pair,
    state: State,
    tokens_BS: Tensor,
    table_BP: Tensor,
    start_B: Tensor,
    slot_positions_BS: Tensor,
    *,
    with_features: bool,
    writes_target: bool = True,
) -> Verified:
    """Runs the target over the tokens, stores their K/V, and keeps the boundary features of pages they complete.

    Args:
        pair: the models.
        state: written only at `boundary_PH`.
        tokens_BS: token ids.
        table_BP: page tables, cut to the pages in reach.
        start_B: position of each row's first token.
        slot_positions_BS: position under which each token is kept, -1 for padding.
        with_features: tap the target and fuse for the drafter.
        writes_target: store the K/V; if not, they are there already.
    """
    page_size = pair.cache.page_size
    slots_BS = slots_of(slot_positions_BS, table_BP, page_size)
    written_BS = slots_BS if writes_target else torch.full_like(slots_BS, TRASH_PAGE)
    attend = PagedAttend(pair.cache, table_BP, start_B, written_BS, pair.target.config.windows)
    positions_BS = start_B[:, None] + torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
    taps = pair.taps if with_features else ()
    hidden_BSH, features_BSF = pair.target(tokens_BS, positions_BS, attend, taps)
    if features_BSF is None:
        return Verified(hidden_BSH, None)
    assert pair.drafter is not None
    fused_BSH = pair.drafter.fuse(features_BSF)
    _keep_boundaries(state, fused_BSH, slots_BS, page_size)
    return Verified(hidden_BSH, fused_BSH)


def _keep_boundaries(state: State, fused_BSH: Tensor, slots_BS: Tensor, page_size: int) -> None:
    """A rejected token may leave a wrong feature; the accepted one at its place comes later and overwrites it."""
    completes = slots_BS.remainder(page_size) == page_size - 1
    pages = torch.where(completes, torch.div(slots_BS, page_size, rounding_mode="floor"), TRASH_PAGE)
    state.boundary_PH.index_copy_(0, pages.flatten(), fused_BSH.flatten(0, 1))
