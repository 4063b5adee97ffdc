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
    K = drafts_BK.shape[1]
    allowed = torch.arange(K, device=drafts_BK.device) < limit_B[:, None]
    matches = (drafts_BK == tokens_BS[:, :K]) & allowed
    return matches.long().cumprod(1).sum(1) + 1
