"""Log-probabilities of tokens under the target's own softmax, and of the likeliest ones beside them.

They are of the logits before penalties, bans and temperature, in float32, one place at a time: a place has the same
values whatever is computed beside it.

Shapes: B rows, S places a row, N alternatives, V token ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tops:
    """Log-probabilities by row and place."""

    own_BS: Tensor
    """float32, of the token that was chosen or given."""
    ids_BSN: Tensor
    """int64: the likeliest ids, likeliest first."""
    values_BSN: Tensor
    """float32: theirs."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Tops:
        """The same with every tensor changed, as by a copy to the host."""
        return Tops(change(self.own_BS), change(self.ids_BSN), change(self.values_BSN))


def tops_of(logits_BSV: Tensor, tokens_BS: Tensor, num: int) -> Tops:
    """The tokens' log-probabilities, and those of the `num` likeliest ids (all of them, if there are fewer).

    Args:
        logits_BSV: any float dtype.
        tokens_BS: int64.
        num: N, 0 or more.
    """
    all_BSV = logits_BSV.float().log_softmax(-1)
    own_BS = all_BSV.gather(-1, tokens_BS[..., None])[..., 0]
    values_BSN, ids_BSN = all_BSV.topk(min(max(num, 1), all_BSV.shape[-1]), dim=-1)
    return Tops(own_BS, ids_BSN[..., :num], values_BSN[..., :num])


def joined(parts: list[Tops]) -> Tops:
    """Places one after another."""
    fields = zip(*((part.own_BS, part.ids_BSN, part.values_BSN) for part in parts), strict=True)
    return Tops(*(torch.cat(field, dim=1) for field in fields))
