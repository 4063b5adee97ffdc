"""Acceptance by equality, and what it moves: a draft stands while it equals the target's token at its place.

Shapes: B rows of R, K drafts, S = K+1, W pending places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.sample import uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What `settle` reads and writes of every row; the last row is inert, and its length stays 0."""

    length_R: Tensor
    last_token_R: Tensor
    num_pending_R: Tensor
    pending_tokens_RW: Tensor
    max_k_R: Tensor
    """Read: drafts that may be accepted."""
    seed_R: Tensor
    """Read where acceptance is simulated."""
    chance_RK: Tensor | None
    """Read: by place, the chance that a draft stands whatever it is; None compares."""
    max_positions: int
    """Drafts stand only before this position."""


def settle(ledger: Ledger, rows_B: Tensor, drafts_BK: Tensor | None, chosen_BS: Tensor) -> Tensor:
    """Accepts drafts and moves the rows forward; int64 [B, 1 + S]: how many tokens each row emitted, then its tokens.

    Args:
        ledger: written at the rows.
        rows_B: the rows.
        drafts_BK: drafted target ids; None if there were none, and S is 1.
        chosen_BS: the target's choice after each of the S verified tokens.
    """
    if rows_B.is_cuda:
        from outpace.kernels.gpu import settle as gpu

        tensors = {name: getattr(ledger, name) for name in Ledger.__dataclass_fields__}
        return gpu.settle(rows_B, drafts_BK, chosen_BS, **tensors)
    length_B = ledger.length_R[rows_B]
    num_emitted_B = torch.ones_like(length_B)
    if drafts_BK is not None:
        limit_B = ledger.max_k_R[rows_B].minimum((ledger.max_positions - length_B).clamp(min=0))
        if ledger.chance_RK is None:
            num_emitted_B = accept(drafts_BK, chosen_BS, limit_B)
        else:
            noise_BK = _noise(ledger.seed_R[rows_B], length_B, drafts_BK.shape[1])
            num_emitted_B = accept_by_chance(noise_BK, ledger.chance_RK[rows_B], limit_B)
            stands_BS = torch.arange(chosen_BS.shape[1], device=rows_B.device) < num_emitted_B[:, None] - 1
            chosen_BS = torch.where(stands_BS, torch.cat((drafts_BK, chosen_BS[:, -1:]), 1), chosen_BS)
        ledger.pending_tokens_RW[rows_B, : chosen_BS.shape[1]] = chosen_BS
    ledger.length_R[rows_B] = length_B + num_emitted_B
    ledger.length_R[-1:].zero_()
    ledger.last_token_R[rows_B] = chosen_BS.gather(1, (num_emitted_B - 1)[:, None])[:, 0]
    ledger.num_pending_R[rows_B] = num_emitted_B
    return torch.cat((num_emitted_B[:, None], chosen_BS), dim=1)


def _noise(seed_B: Tensor, length_B: Tensor, num_drafts: int) -> Tensor:
    return uniform(seed_B, length_B[:, None], torch.arange(num_drafts, device=seed_B.device))[:, 0]


def accept(drafts_BK: Tensor, tokens_BS: Tensor, limit_B: Tensor) -> Tensor:
    """Tokens emitted by each row, int64 [B], 1 … K+1: the accepted drafts and the target's own next token.

    Args:
        drafts_BK: drafted target ids.
        tokens_BS: the target's choice after each of the S verified tokens.
        limit_B: drafts of a row that may be accepted, 0 … K; what lies past it was not meant.
    """
    return _count(drafts_BK == tokens_BS[:, :-1], limit_B)


def accept_by_chance(noise_BK: Tensor, chance_BK: Tensor, limit_B: Tensor) -> Tensor:
    """Tokens emitted by each row, int64 [B], 1 … K+1, where a draft stands with a given chance whatever it is.

    Args:
        noise_BK: uniform, 0 … 1.
        chance_BK: by row and place; it may be wider than K.
        limit_B: drafts of a row that may be accepted, 0 … K.
    """
    return _count(noise_BK < chance_BK[:, : noise_BK.shape[1]], limit_B)


def _count(stands_BK: Tensor, limit_B: Tensor) -> Tensor:
    allowed = torch.arange(stands_BK.shape[1], device=stands_BK.device) < limit_B[:, None]
    return (stands_BK & allowed).long().cumprod(1).sum(1) + 1
