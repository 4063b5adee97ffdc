"""Prefill: verify without a draft, over a chunk of each row's prompt; it fills the drafter's cache on the way.

Shapes: B rows, S prompt tokens a row (padded), H hidden size, P pages a row,
W words of packed masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.kernels.logprobs import tops_of
from outpace.kernels.sample import Sampling, choose
from outpace.speculation.chosen import Chosen
from outpace.speculation.draft import fill_drafter
from outpace.speculation.pair import Pair
from outpace.speculation.prompt_tops import Asked, prompt_tops
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import verify


def prefill(
    pair: Pair,
    state: State,
    rows_B: Tensor,
    tokens_BS: Tensor,
    num_tokens_B: Tensor,
    table_BP: Tensor,
    sampling: Sampling,
    *,
    ends_B: Tensor | None = None,
    fills_drafter: bool,
    num_logprobs: int | None = None,
    asked: Asked | None = None,
    allowed_BSW: Tensor | None = None,
) -> Chosen:
    """Computes one chunk a row and the token after it, which counts only where the prompt ends with the chunk.

    Args:
        pair: the models.
        state: `length`, `last_token` and the pending places are written.
        rows_B: the rows.
        tokens_BS: prompt tokens from each row's length on, padded with any id.
        num_tokens_B: how many of them are real, 1 … S.
        table_BP: page tables, cut to the pages in reach.
        sampling: settings of the rows.
        ends_B: 1 where the prompt ends with the chunk, else 0; None where `sampling` has no rules.
        fills_drafter: fill the drafter's cache too.
        num_logprobs: alternatives to find beside the log-probability of each token; None computes none.
        asked: whose prompt tokens' log-probabilities are wanted; None if nobody's are.
        allowed_BSW: packed masks of the tokens behind the chunks, [B, 1, W]; None admits all.
    """
    start_B = state.length_R[rows_B]
    span = Span.of(table_BP, start_B, tokens_BS.shape[1], pair.cache.page_size, num_tokens_B)
    verified = verify(pair, state, rows_B, tokens_BS, span, with_features=fills_drafter)
    end_B = start_B + num_tokens_B
    logits_B1V = pair.target.logits(last_of(verified.hidden_BSH, num_tokens_B))
    tokens_B1 = choose(logits_B1V, sampling, end_B[:, None], allowed_BSW=allowed_BSW)
    if verified.fused_BSH is not None:
        carried_B1H = state.pending_hidden_RWH[rows_B, :1]
        before_BSH = torch.cat((carried_B1H, verified.fused_BSH[:, :-1]), dim=1)
        fill_drafter(pair, tokens_BS, before_BSH, span)
        state.pending_hidden_RWH[rows_B, 0] = last_of(verified.fused_BSH, num_tokens_B)[:, 0]
        state.pending_tokens_RW[rows_B, 0] = tokens_B1[:, 0]
    state.num_pending_R.index_fill_(0, rows_B, 1)
    state.length_R[rows_B] = end_B
    state.last_token_R[rows_B] = tokens_B1[:, 0]
    if ends_B is not None:
        state.count(rows_B, torch.cat((ends_B[:, None], tokens_B1), dim=1))
    return Chosen(
        outcome_BC=torch.cat((torch.ones_like(tokens_B1), tokens_B1), dim=1),
        tops=None if num_logprobs is None else tops_of(logits_B1V, tokens_B1, num_logprobs),
        prompt_tops=None if asked is None else prompt_tops(pair.target, verified.hidden_BSH, asked),
    )


def last_of(x_BSH: Tensor, num_tokens_B: Tensor) -> Tensor:
    """Each row's last real place, [B, 1, H]."""
    return x_BSH.gather(1, (num_tokens_B - 1)[:, None, None].expand(-1, 1, x_BSH.shape[2]))
