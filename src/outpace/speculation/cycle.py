"""The cycle: draft, verify, accept, commit. With k = 0 the draft and the features fall away and a plain step remains.

Nothing here reads a value on the host: shapes come from the Plan, everything else stays on the device.

Shapes: B rows, K drafts, S = K+1, P pages a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.kernels.accept import accept, accept_by_chance
from outpace.kernels.sample import Sampling, choose, uniform
from outpace.speculation.draft import draft
from outpace.speculation.pair import Pair
from outpace.speculation.state import Chosen, State
from outpace.speculation.verify import verify


def cycle(pair: Pair, state: State, rows_B: Tensor, table_BP: Tensor, sampling: Sampling, k: int) -> Chosen:
    """One cycle of k drafts for the given rows, which may be padded with the inert row; 1 … k+1 tokens a row."""
    length_B = state.length_R[rows_B]
    tokens_BS = state.last_token_R[rows_B][:, None]
    if k:
        drafts_BK = draft(pair, state, rows_B, table_BP, sampling, k)
        tokens_BS = torch.cat((tokens_BS, drafts_BK), dim=1)
    positions_BS = length_B[:, None] + torch.arange(k + 1, device=rows_B.device)
    verified = verify(pair, state, tokens_BS, table_BP, length_B, positions_BS, with_features=k > 0)
    chosen_BS = choose(pair.target.logits(verified.hidden_BSH), sampling, positions_BS + 1)
    if k:
        limit_B = torch.minimum(state.max_k_R[rows_B], pair.draftable(length_B))
        if state.chance_K is None:
            num_emitted_B = accept(drafts_BK, chosen_BS, limit_B)
        else:
            chosen_BS, num_emitted_B = _simulate(state.chance_K, drafts_BK, chosen_BS, limit_B, sampling, length_B)
    else:
        num_emitted_B = torch.ones_like(length_B)
    _commit(state, rows_B, length_B, chosen_BS, num_emitted_B, verified.fused_BSH)
    return Chosen(chosen_BS, num_emitted_B)


def _simulate(
    chance_K: Tensor, drafts_BK: Tensor, chosen_BS: Tensor, limit_B: Tensor, sampling: Sampling, length_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Accepts by chance, keyed by seed and position; what stands is emitted as it was drafted."""
    K = drafts_BK.shape[1]
    places_K = torch.arange(K, device=drafts_BK.device)
    noise_BK = uniform(sampling.seed_B, length_B[:, None], places_K)[:, 0]
    num_emitted_B = accept_by_chance(noise_BK, chance_K, limit_B)
    drafted_BS = torch.cat((drafts_BK, chosen_BS[:, -1:]), dim=1)
    stands_BS = torch.arange(K + 1, device=drafts_BK.device) < num_emitted_B[:, None] - 1
    return torch.where(stands_BS, drafted_BS, chosen_BS), num_emitted_B


def _commit(
    state: State,
    rows_B: Tensor,
    length_B: Tensor,
    chosen_BS: Tensor,
    num_emitted_B: Tensor,
    fused_BSH: Tensor | None,
) -> None:
    """Moves each row forward; rejected K/V lies past the new length and is overwritten."""
    state.length_R[rows_B] = length_B + num_emitted_B
    state.last_token_R[rows_B] = chosen_BS.gather(1, (num_emitted_B - 1)[:, None])[:, 0]
    state.num_pending_R[rows_B] = num_emitted_B
    state.length_R[state.inert :].zero_()
    if fused_BSH is not None:
        S = chosen_BS.shape[1]
        state.pending_tokens_RW[rows_B, :S] = chosen_BS
        state.pending_hidden_RWH[rows_B, :S] = fused_BSH
