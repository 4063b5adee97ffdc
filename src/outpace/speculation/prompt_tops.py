"""Log-probabilities of prompt tokens, out of the hidden states that prefill has anyway.

Logits of a whole chunk would take more memory than anything else here, so they are made a few places at a time.

Shapes: B rows, A of them asked, S tokens a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outpace.kernels.logprobs import Tops, joined, tops_of
from outpace.models.target import Target

LOGITS_AT_ONCE = 64
"""Rows times places."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose prompt tokens are asked for."""

    places_A: Tensor
    """Which of the B rows."""
    following_AS: Tensor
    """The token behind each of a row's tokens, padded with any id."""
    num: int
    """Alternatives to find beside each."""


def prompt_tops(target: Target, hidden_BSH: Tensor, asked: Asked) -> Tops:
    """Log-probabilities of the tokens that follow, [A, S]; what lies behind a row's last real token means nothing."""
    hidden_ASH = hidden_BSH[asked.places_A]
    step = max(1, LOGITS_AT_ONCE // len(hidden_ASH))
    parts = [
        tops_of(target.logits(hidden_ASH[:, at : at + step]), asked.following_AS[:, at : at + step], asked.num)
        for at in range(0, hidden_ASH.shape[1], step)
    ]
    return joined(parts)
