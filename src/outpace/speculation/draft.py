"""Draft: the drafter proposes k tokens one after another, after it has seen what the last cycle accepted.

How many tokens were accepted is known on the device alone, so that first pass always takes W places and routes the
surplus to the trash page.

Shapes: B rows, K drafts, W pending places, H drafter hidden size, P pages a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.kernels.attention import PagedAttend
from outpace.kernels.sample import Sampling, choose
from outpace.speculation.pair import Pair
from outpace.speculation.span import Span
from outpace.speculation.state import State

MANY = 64
"""Tokens up to which a drafter's forward takes about as long as for one: reading its weights is all the work."""


def draft(pair: Pair, state: State, rows_B: Tensor, table_BP: Tensor, sampling: Sampling, k: int) -> Tensor:
    """Target ids that the drafter proposes after each row's last token, int64 [B, k], k ≥ 1."""
    assert pair.drafter_cache is not None
    length_B, first_B = state.length_R[rows_B], state.first_R[rows_B]
    hidden_B1H, out_B1H = _pending(pair, state, rows_B, table_BP, length_B, first_B)
    drafts = [_propose(pair, out_B1H, sampling, length_B, None, 1)]
    for step in range(1, k):
        span = Span.ahead(table_BP, length_B, step, pair.drafter_cache.page_size)
        hidden_B1H, out_B1H = run_drafter(pair, drafts[-1], hidden_B1H, span, first_B)
        drafts_BK = torch.cat(drafts, dim=1) if sampling.rules is not None else None
        drafts.append(_propose(pair, out_B1H, sampling, length_B, drafts_BK, step + 1))
    return torch.cat(drafts, dim=1)


def _pending(
    pair: Pair, state: State, rows_B: Tensor, table_BP: Tensor, length_B: Tensor, first_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Feeds the pending tokens; returns hidden state and output at the newest of them, [B, 1, H] each.

    Most of the places are surplus, or older than the newest token: where they are many, they are only stored.
    """
    assert pair.drafter_cache is not None
    pending_B = state.num_pending_R[rows_B]
    tokens_BW = state.pending_tokens_RW[rows_B]
    pending_BWH = state.pending_hidden_RWH[rows_B]
    start_B, page_size = length_B - pending_B + 1, pair.drafter_cache.page_size
    span = Span.of(table_BP, start_B, tokens_BW.shape[1], page_size, pending_B)
    newest_B = (pending_B - 1).clamp(min=0)
    if tokens_BW.numel() <= MANY:
        hidden_BWH, out_BWH = run_drafter(pair, tokens_BW, pending_BWH, span, first_B)
        return _at(newest_B, hidden_BWH), _at(newest_B, out_BWH)
    fill_drafter(pair, tokens_BW, pending_BWH, span)
    alone = Span.ahead(table_BP, length_B, 0, page_size)
    token_B1 = tokens_BW.gather(1, newest_B[:, None])
    return run_drafter(pair, token_B1, _at(newest_B, pending_BWH), alone, first_B)


def _at(place_B: Tensor, x_BWH: Tensor) -> Tensor:
    """One place of each row, [B, 1, H]."""
    return x_BWH.gather(1, place_B[:, None, None].expand(-1, 1, x_BWH.shape[2]))


def run_drafter(
    pair: Pair, tokens_BS: Tensor, hidden_BSH: Tensor, span: Span, first_B: Tensor
) -> tuple[Tensor, Tensor]:
    """One drafter forward: entry s joins token s with what comes before it, and is kept at its slot.

    Args:
        tokens_BS: tokens of the span.
        hidden_BSH: for each, the fused feature of the position before, or the drafter's own state of the step before.
        span: where they stand.
        first_B: lowest slot that each row's drafter sees.

    Returns:
        The next step's hidden states and the outputs, [B, S, H] each.
    """
    assert pair.drafter is not None and pair.drafter_cache is not None
    attend = PagedAttend(pair.drafter_cache, span.table_BP, span.start_B, span.slots_BS, (None,), first_B)
    return pair.drafter(tokens_BS, hidden_BSH, span.positions_BS, attend, ahead=-1)


def fill_drafter(pair: Pair, tokens_BS: Tensor, hidden_BSH: Tensor, span: Span) -> None:
    """As `run_drafter` of entries whose outputs nobody asks for, which a prompt's and past ones are."""
    assert pair.drafter is not None and pair.drafter_cache is not None
    attend = PagedAttend(pair.drafter_cache, span.table_BP, span.start_B, span.slots_BS, (None,))
    pair.drafter.store(tokens_BS, hidden_BSH, span.positions_BS, attend, ahead=-1)


def _propose(
    pair: Pair, out_B1H: Tensor, sampling: Sampling, length_B: Tensor, drafts_BK: Tensor | None, ahead: int
) -> Tensor:
    """The token that the drafter would put at position length + ahead, under the target's own noise; [B, 1].

    Penalties, biases and bans are the target's too, with the drafts before it: they raise acceptance.
    """
    assert pair.drafter is not None
    logits_B1V = pair.drafter.logits(out_B1H)
    return choose(logits_B1V, sampling, length_B[:, None], pair.drafter.target_ids_V, ahead=ahead, drafts_BK=drafts_BK)
