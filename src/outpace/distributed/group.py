"""The tensor-parallel group: ranks that hold a share of every layer, and the few collectives that they need.

Parts are gathered in rank order, and whoever adds them adds them in that order: every rank then has the same bits, and
a row's bits do not depend on how many rows are summed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13 has a new name for it."""


@dataclass(frozen=True, slots=True)
class Group:
    """One rank's end of the group. Every rank calls the same collectives in the same order."""

    rank: int = 0
    size: int = 1
    handle: Any = None
    """A `torch.distributed.ProcessGroup`; None where the rank is alone."""

    def gather(self, part: Tensor) -> Tensor:
        """All ranks' parts, which have one shape: [size, ...]."""
        out = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        _all_gather(out.flatten(0, 1), part.contiguous(), group=self.handle)
        return out

    def broadcast(self, values: Tensor) -> Tensor:
        """The first rank's values, written into those of the others."""
        if self.size > 1:
            dist.broadcast(values, group_src=0, group=self.handle)
        return values

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum over ranks, in place, in an order that is the library's."""
        dist.all_reduce(part, group=self.handle)
        return part


ALONE = Group()
