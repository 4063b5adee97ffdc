"""Experts that drafted tokens share: opportunistic expert activation. LOSSY, and off unless it is asked for.

What a verify of a mixture takes is the bytes of the experts that its tokens open. A row's first token, which is
certain, opens all of its best experts; a drafted token opens its best but the last `num`, and takes the others from
among those that some token opens anyway, best first. So a plain step is exact, and a verify is not what plain steps
would compute.

Source: Oncescu et al. 2025, "Opportunistic Expert Activation", arXiv:2511.02237; its first tokens are not exempt.

Legend: T tokens, row by row; E experts, C experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reuse:
    """How many of a drafted token's C experts are taken from those that are open; 0 is exact."""

    num: int = 0
    tokens_a_row: int = 1


NO_REUSE = Reuse()


def among_open(ranked_TE: Tensor, num_chosen: int, reuse: Reuse) -> Tensor:
    """Scores to choose by, in which experts that no token opens come last."""
    if not reuse.num or reuse.tokens_a_row == 1:
        return ranked_TE
    first_TC = ranked_TE.topk(num_chosen, dim=-1).indices
    place_T = torch.arange(len(first_TC), device=first_TC.device) % reuse.tokens_a_row
    opens_TC = torch.arange(num_chosen, device=first_TC.device) < torch.where(
        place_T == 0, num_chosen, num_chosen - reuse.num
    ).unsqueeze(1)
    open_E = torch.zeros_like(ranked_TE, dtype=torch.bool).scatter(1, first_TC, opens_TC).any(0)
    return torch.where(open_E, ranked_TE, ranked_TE - 10000.0)
