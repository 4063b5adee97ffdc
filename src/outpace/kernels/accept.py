"""Acceptance by equality: a draft stands while it equals the token that the target chose at its place.

Shapes: B rows, K drafts, S = K+1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accept(drafts_BK: Tensor, tokens_BS: Tensor, limit_B: Tensor) -> Tensor:
    """Tokens emitted by each row, int64 [B], 1 … K+1: the accepted drafts and the target's own next token.

    Args:
        drafts_BK: drafted target ids.
        tokens_BS: the target's choice after each of the S verified tokens.
        limit_B: drafts of a row that may be accepted, 0 … K; what lies past it was not meant.
    """
    return _count(drafts_BK == tokens_BS[:, :-1], limit_B)


def accept_by_chance(noise_BK: Tensor, chance_K: Tensor, limit_B: Tensor) -> Tensor:
    """Tokens emitted by each row, int64 [B], 1 … K+1, where a draft stands with a given chance whatever it is.

    Args:
        noise_BK: uniform, 0 … 1.
        chance_K: by the draft's place.
        limit_B: drafts of a row that may be accepted, 0 … K.
    """
    return _count(noise_BK < chance_K[: noise_BK.shape[1]], limit_B)


def _count(stands_BK: Tensor, limit_B: Tensor) -> Tensor:
    allowed = torch.arange(stands_BK.shape[1], device=stands_BK.device) < limit_B[:, None]
    return (stands_BK & allowed).long().cumprod(1).sum(1) + 1
