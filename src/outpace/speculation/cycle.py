"""The cycle: draft, verify, accept, commit. With k = 0 the drafter has no part in it and a plain step remains.

Nothing here reads a value on the host: shapes come from the Plan, everything else stays on the device.

Shapes: B rows, K drafts, S = K+1, P pages a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.kernels.accept import settle
from outpace.kernels.logprobs import tops_of
from outpace.kernels.sample import Sampling, choose
from outpace.speculation.chosen import Chosen
from outpace.speculation.draft import draft
from outpace.speculation.pair import Pair
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import Verified, verify

Mark = Callable[[str], None]
"""Told the name of a phase when the last of its work has been enqueued: "draft", "verify", "accept"."""


def no_mark(phase: str) -> None:
    """Times nothing."""


@dataclass(slots=True)
class Cycle:
    """One cycle of k drafts for the given rows, each of which emits 1 … k+1 tokens.

    `run` is all of it; `draft`, `verify` and `accept`, in this order, are for a host that has work between them.

    Args:
        pair: the models.
        state: moved forward at the rows.
        rows_B: the rows; they may be padded with the inert row.
        table_BP: their page tables, cut to the pages in reach.
        sampling: settings of the rows.
        k: drafts.
        mark: told when a phase ends.
        num_logprobs: alternatives to find beside each token's log-probability; None computes none.
    """

    pair: Pair
    state: State
    rows_B: Tensor
    table_BP: Tensor
    sampling: Sampling
    k: int
    mark: Mark = no_mark
    num_logprobs: int | None = None
    drafts_BK: Tensor | None = field(default=None, init=False)
    """None before `draft`, and without drafts."""
    _span: Span | None = field(default=None, init=False)
    _verified: Verified | None = field(default=None, init=False)

    def run(self) -> Chosen:
        """Drafts, verifies, accepts and commits."""
        self.draft()
        self.verify()
        return self.accept()

    def draft(self) -> None:
        """Proposes k tokens a row."""
        if self.k:
            self.drafts_BK = draft(self.pair, self.state, self.rows_B, self.table_BP, self.sampling, self.k)
        self.mark("draft")

    def verify(self) -> None:
        """Runs the target over them."""
        length_B = self.state.length_R[self.rows_B]
        tokens_BS = self.state.last_token_R[self.rows_B][:, None]
        if self.drafts_BK is not None:
            tokens_BS = torch.cat((tokens_BS, self.drafts_BK), dim=1)
        self._span = Span.of(self.table_BP, length_B, self.k + 1, self.pair.cache.page_size)
        self._verified = verify(
            self.pair,
            self.state,
            self.rows_B,
            tokens_BS,
            self._span,
            with_features=self.k > 0,
            with_logits=True,
            expert_reuse=self.pair.expert_reuse,
        )
        self.mark("verify")

    def accept(self, allowed_BSW: Tensor | None = None) -> Chosen:
        """Chooses, accepts and commits.

        Args:
            allowed_BSW: packed masks of the tokens that may be chosen at each place; None admits all.
        """
        verified, state, rows_B = self._verified, self.state, self.rows_B
        assert verified is not None and verified.logits_BSV is not None and self._span is not None
        chosen_BS = choose(
            verified.logits_BSV,
            self.sampling,
            self._span.positions_BS,
            ahead=1,
            drafts_BK=self.drafts_BK,
            allowed_BSW=allowed_BSW,
        )
        if verified.fused_BSH is not None:
            state.pending_hidden_RWH[rows_B, : self.k + 1] = verified.fused_BSH
        outcome_BC = settle(state.ledger(self.pair.max_drafted), rows_B, self.drafts_BK, chosen_BS)
        if self.sampling.rules is not None:
            state.count(rows_B, outcome_BC)
        tops = None
        if self.num_logprobs is not None:
            tops = tops_of(verified.logits_BSV, outcome_BC[:, 1:], self.num_logprobs)
        self.mark("accept")
        return Chosen(outcome_BC, tops, touched=verified.touched)
