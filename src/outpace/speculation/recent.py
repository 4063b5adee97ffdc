"""What the target made of each row's last tokens: a drafter that did not follow for a while is shown it.

Every forward of the target keeps its taps here, plain steps too: that is a copy of a few kilobytes, where computing
them once more when drafting resumes would be a prefill.

Shapes: R rows and one inert, N tokens kept a row, B rows, S tokens a row, F tapped features (A taps · target hidden).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from outpace.kernels.recent import remember
from outpace.models.drafter import Drafter
from outpace.speculation.span import Span


def num_kept(history: int, max_k: int) -> int:
    """N, so that what a cycle of so many drafts writes and takes back overwrites nothing of the history."""
    return history + max_k + 1


def bytes_per_token(drafter: Drafter, dtype: torch.dtype) -> int:
    """Of one kept token."""
    return _num_features(drafter) * dtype.itemsize + torch.int64.itemsize


def _num_features(drafter: Drafter) -> int:
    """F."""
    return len(drafter.wiring.aux_boundaries) * drafter.wiring.target_hidden_size


@dataclass(frozen=True, slots=True)
class Recent:
    """A ring a row; a token lies at its position modulo N."""

    tokens_RN: Tensor
    features_RNF: Tensor

    @classmethod
    def allocate(cls, drafter: Drafter, *, num_rows: int, num: int, dtype: torch.dtype, device: torch.device) -> Self:
        """Room for N = `num` tokens of R = `num_rows` rows, the inert one among them."""
        tokens_RN = torch.zeros(num_rows, num, dtype=torch.int64, device=device)
        return cls(tokens_RN, torch.zeros(num_rows, num, _num_features(drafter), dtype=dtype, device=device))

    def keep(self, rows_B: Tensor, span: Span, tokens_BS: Tensor, features_BSF: Tensor) -> None:
        """Of a forward over a span of the rows."""
        remember(self.tokens_RN, self.features_RNF, rows_B, span.start_B, span.kept_B, tokens_BS, features_BSF)

    def of(self, rows_B: Tensor, positions_BS: Tensor) -> tuple[Tensor, Tensor]:
        """tokens_BS and features_BSF; positions that are not kept give anything."""
        places_BS = positions_BS.remainder(self.tokens_RN.shape[1])
        return self.tokens_RN[rows_B[:, None], places_BS], self.features_RNF[rows_B[:, None], places_BS]
