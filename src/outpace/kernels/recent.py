"""The last tokens of each row and what the target made of them, in a ring a row.

Shapes: B rows of R, S tokens a row, N tokens kept a row, F tapped features.
"""

from __future__ import annotations

import torch
from torch import Tensor


def remember(
    tokens_RN: Tensor,
    features_RNF: Tensor,
    rows_B: Tensor,
    start_B: Tensor,
    num_tokens_B: Tensor | None,
    tokens_BS: Tensor,
    features_BSF: Tensor,
) -> None:
    """Keeps each row's newest N of these tokens at their position modulo N.

    Args:
        tokens_RN, features_RNF: the rings, written; the last row belongs to nobody.
        rows_B: the rows; only the last may be there more than once.
        start_B: position of each row's first token.
        num_tokens_B: how many of a row's tokens are real; None for all.
        tokens_BS: int64 ids.
        features_BSF: the target's taps there.
    """
    if rows_B.is_cuda:
        from outpace.kernels.gpu import recent as gpu

        gpu.remember(
            tokens_RN, features_RNF, rows_B, start_B, num_tokens_B, tokens_BS.contiguous(), features_BSF.contiguous()
        )
        return
    nobody, num_kept, num_tokens = tokens_RN.shape[0] - 1, tokens_RN.shape[1], tokens_BS.shape[1]
    s_S = torch.arange(num_tokens, device=rows_B.device)
    behind_BS = (num_tokens if num_tokens_B is None else num_tokens_B[:, None]) - s_S
    kept_BS = ((behind_BS > 0) & (behind_BS <= num_kept)).expand_as(tokens_BS)
    row_BS = torch.where(kept_BS, rows_B[:, None], nobody)
    place_BS = (start_B[:, None] + s_S).remainder(num_kept)
    tokens_RN[row_BS, place_BS] = tokens_BS
    features_RNF[row_BS, place_BS] = features_BSF
