"""Catch-up: after plain steps, which leave no features, the drafter's cache is filled in before it drafts again.

The target computes the tokens in question once more, over the keys and values that it has of them, and writes none.

Shapes: B rows, S tokens a row (padded), H hidden size, P pages a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.speculation.chosen import Chosen
from outpace.speculation.draft import run_drafter
from outpace.speculation.pair import Pair
from outpace.speculation.prefill import last_of
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import verify


def catch_up(
    pair: Pair,
    state: State,
    rows_B: Tensor,
    tokens_BS: Tensor,
    num_tokens_B: Tensor,
    start_B: Tensor,
    cold_B: Tensor,
    table_BP: Tensor,
) -> Chosen:
    """Fills each row's drafter entries from start + 1 to its length - 1, and readies the one of its last token.

    Args:
        pair: the models; there is a drafter.
        state: the pending places and `first_R` are written.
        rows_B: the rows.
        tokens_BS: each row's tokens from `start_B` to its length - 1, padded with any id.
        num_tokens_B: how many of them are real, 1 … S.
        start_B: position of the first; its feature is needed, its entry is there already or not seen.
        cold_B: older entries are missing: the row's drafter sees those from start + 1 on.
        table_BP: page tables, cut to the pages in reach.

    Returns:
        No token for any row.
    """
    span = Span.of(table_BP, start_B, tokens_BS.shape[1], pair.cache.page_size, num_tokens_B)
    verified = verify(pair, state, tokens_BS, span, with_features=True, writes_target=False)
    assert verified.fused_BSH is not None
    state.first_R[rows_B] = torch.where(cold_B, start_B + 1, state.first_R[rows_B])
    if tokens_BS.shape[1] > 1:
        before_BSH, first_B = verified.fused_BSH[:, :-1], state.first_R[rows_B]
        run_drafter(pair, tokens_BS[:, 1:], before_BSH, span.behind_first(), first_B)
    state.pending_hidden_RWH[rows_B, 0] = last_of(verified.fused_BSH, num_tokens_B)[:, 0]
    state.pending_tokens_RW[rows_B, 0] = state.last_token_R[rows_B]
    state.num_pending_R[rows_B] = 1
    return Chosen(torch.zeros_like(start_B)[:, None])
