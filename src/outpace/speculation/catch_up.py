"""Catch-up: after plain steps the drafter's cache is filled in behind, from what the target made of their tokens.

Shapes: B rows, S positions a row (padded), H drafter hidden size, P pages a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.kernels.kv import keep_boundaries
from outpace.speculation.chosen import Chosen
from outpace.speculation.draft import fill_drafter
from outpace.speculation.pair import Pair
from outpace.speculation.prefill import last_of
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import verify


def catch_up(
    pair: Pair,
    state: State,
    rows_B: Tensor,
    start_B: Tensor,
    num_positions_B: Tensor,
    cold_B: Tensor,
    table_BP: Tensor,
    num_places: int,
) -> Chosen:
    """Fills each row's drafter entries from start + 1 to its length - 1, and readies the one of its last token.

    The features in question are kept in `state.recent`.

    Args:
        pair: the models; there is a drafter.
        state: the pending places, `first_R` and `boundary_PH` are written.
        rows_B: the rows.
        start_B: position of the first feature that is needed; its entry is there already or not seen.
        num_positions_B: how many there are from there to the row's length, 1 … S.
        cold_B: older entries are missing: the row's drafter sees those from start + 1 on.
        table_BP: page tables, cut to the pages in reach.
        num_places: S.

    Returns:
        No token for any row.
    """
    assert pair.drafter is not None and state.recent is not None
    page_size = pair.cache.page_size
    span = Span.of(table_BP, start_B, num_places, page_size, num_positions_B)
    tokens_BS, features_BSF = state.recent.of(rows_B, span.positions_BS)
    fused_BSH = pair.drafter.fuse(features_BSF)
    keep_boundaries(state.boundary_PH, fused_BSH, span.slots_BS, page_size)
    state.first_R[rows_B] = torch.where(cold_B, start_B + 1, state.first_R[rows_B])
    if num_places > 1:
        fill_drafter(pair, tokens_BS[:, 1:], fused_BSH[:, :-1], span.behind_first())
    state.pending_hidden_RWH[rows_B, 0] = last_of(fused_BSH, num_positions_B)[:, 0]
    state.pending_tokens_RW[rows_B, 0] = state.last_token_R[rows_B]
    state.num_pending_R.index_fill_(0, rows_B, 1)
    return Chosen(torch.zeros_like(start_B)[:, None])


def recompute(
    pair: Pair, state: State, rows_B: Tensor, tokens_BS: Tensor, num_tokens_B: Tensor, start_B: Tensor, table_BP: Tensor
) -> None:
    """Keeps in `state.recent` what the target makes of tokens that other rows computed; nothing else is written.

    Args:
        pair: the models.
        state: see above.
        rows_B: the rows.
        tokens_BS: their tokens from `start_B` on, padded with any id.
        num_tokens_B: how many of them are real, 0 … S.
        start_B: position of the first.
        table_BP: page tables, cut to the pages in reach.
    """
    span = Span.of(table_BP, start_B, tokens_BS.shape[1], pair.cache.page_size, num_tokens_B)
    verify(pair, state, rows_B, tokens_BS, span, with_features=False, writes_target=False)
