"""What a forward leaves on the device for the host to read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outpace.kernels.logprobs import Tops


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tokens by row, and their log-probabilities where some row wants them. B rows, C = 1 + S."""

    outcome_BC: Tensor
    """int64: how many tokens each row emitted, then its tokens."""
    tops: Tops | None = None
    """Of these tokens."""
    prompt_tops: Tops | None = None
    """Of prompt tokens, by row that wants them."""
    touched: Tensor | None = None
    """How many experts a cycle touched, over all layers of a mixture."""
