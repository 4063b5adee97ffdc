"""The cycle: draft, verify, accept, commit. With k = 0 the draft and the features fall away and a plain step remains.

Nothing here reads a value on the host: shapes come from the Plan, everything else stays on the device.

Shapes: B rows, K drafts, S = K+1, P pages a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outpace.kernels.accept import settle
from outpace.kernels.kv import places
from outpace.kernels.logprobs import tops_of
from outpace.kernels.sample import Sampling, choose
from outpace.speculation.chosen import Chosen
from outpace.speculation.draft import draft
from outpace.speculation.pair import Pair
from outpace.speculation.state import State
from outpace.speculation.verify import verify

Mark = Callable[[str], None]
"""Told the name of a phase when the last of its work has been enqueued: "draft", "verify", "accept"."""


def no_mark(phase: str) -> None:
    """Times nothing."""


def cycle(
    pair: Pair,
    state: State,
    rows_B: Tensor,
    table_BP: Tensor,
    sampling: Sampling,
    k: int,
    mark: Mark = no_mark,
    num_logprobs: int | None = None,
) -> Chosen:
    """One cycle of k drafts for the given rows, which may be padded with the inert row; each emits 1 … k+1 tokens.

    Args:
        pair: the models.
        state: moved forward at the rows.
        rows_B: the rows.
        table_BP: page tables, cut to the pages in reach.
        sampling: settings of the rows.
        k: drafts.
        mark: told when a phase ends.
        num_logprobs: alternatives to find beside each token's log-probability; None computes none.
    """
    length_B = state.length_R[rows_B]
    tokens_BS = state.last_token_R[rows_B][:, None]
    drafts_BK = None
    if k:
        drafts_BK = draft(pair, state, rows_B, table_BP, sampling, k)
        tokens_BS = torch.cat((tokens_BS, drafts_BK), dim=1)
    mark("draft")
    positions_BS, slots_BS = places(length_B, k + 1, None, table_BP, pair.cache.page_size)
    verified = verify(
        pair, state, tokens_BS, table_BP, length_B, positions_BS, slots_BS, with_features=k > 0, with_logits=True
    )
    mark("verify")
    assert verified.logits_BSV is not None
    chosen_BS = choose(verified.logits_BSV, sampling, positions_BS, ahead=1, drafts_BK=drafts_BK)
    outcome_BC = settle(state.ledger(pair.max_drafted), rows_B, drafts_BK, chosen_BS)
    if verified.fused_BSH is not None:
        state.pending_hidden_RWH[rows_B, : k + 1] = verified.fused_BSH
    if sampling.rules is not None:
        state.count(rows_B, outcome_BC)
    tops = None if num_logprobs is None else tops_of(verified.logits_BSV, outcome_BC[:, 1:], num_logprobs)
    mark("accept")
    return Chosen(outcome_BC, tops)
