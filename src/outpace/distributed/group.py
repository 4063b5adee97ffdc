"""The tensor-parallel group: ranks that hold a share of every layer, and the few collectives that they need.

Parts are gathered in rank order, and whoever adds them adds them in that order: every rank then has the same bits, and
a row's bits do not depend on how many rows are summed beside it, nor on who gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13 has a new name for it."""


class Exchange(Protocol):
    """Gathers parts in less time than the library, up to some size."""

    def takes(self, num_elements: int, dtype: torch.dtype) -> bool:
        """Whether it is the faster one for such a part. The same answer on every rank."""

    def gather(self, part: Tensor, dtype: torch.dtype, *, joins: bool = False) -> Tensor:
        """As `Group.gather`; with `joins` the part comes as float32 summands [C, ...], which are added in order."""

    def adds(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """Whether `add_and_norm` takes such a part, and is the fastest. The same answer on every rank."""

    def add_and_norm(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(x + the sum of all ranks' parts, its RMSNorm · weight); the part comes whole or as float32 summands."""

    def stop(self) -> None:
        """Ends whatever waits for a rank that is gone, for good."""


@dataclass(frozen=True, slots=True)
class Unsummed:
    """This rank's part of a sum over ranks, which the norm behind it makes on its way."""

    part: Tensor
    """Contiguous, whole or as float32 summands [C, ...]."""
    exchange: Exchange


@dataclass(slots=True)
class Rehearsal:
    """While it is on, a rank speaks to nobody, and its own part stands for those of the others: to compile kernels."""

    on: bool = False


@dataclass(slots=True)
class Calls:
    """How many collectives this rank has begun, and ended as far as the host goes: `with calls:` is around each."""

    begun: int = 0
    ended: int = 0

    def __enter__(self) -> None:
        self.begun += 1

    def __exit__(self, kind: object, *rest: object) -> None:
        self.ended += kind is None


@dataclass(frozen=True, slots=True)
class Group:
    """One rank's end of the group. Every rank calls the same collectives in the same order."""

    rank: int = 0
    size: int = 1
    handle: Any = None
    """A `torch.distributed.ProcessGroup`; None where the rank is alone."""
    exchange: Exchange | None = None
    """None leaves everything to the library."""
    sums: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """How it was decided who gathers, as plain data for JSON."""

    rehearsal: Rehearsal = field(default_factory=Rehearsal, compare=False)
    calls: Calls = field(default_factory=Calls, compare=False)

    def gather(self, part: Tensor) -> Tensor:
        """All ranks' parts, which have one shape: [size, ...]."""
        if self.rehearsal.on:
            return part.expand(self.size, *part.shape).contiguous()
        if self.exchange is not None and self.exchange.takes(part.numel(), part.dtype):
            return self.exchange.gather(part.contiguous(), part.dtype)
        return self.by_library(part)

    def by_library(self, part: Tensor) -> Tensor:
        """`gather` by NCCL or gloo, even where the exchange is faster."""
        out = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        part = part.contiguous()
        with self.calls:
            _all_gather(out.flatten(0, 1), part, group=self.handle)
        return out

    def broadcast(self, values: Tensor) -> Tensor:
        """The first rank's values, written into those of the others."""
        if self.size > 1:
            with self.calls:
                dist.broadcast(values, group_src=0, group=self.handle)
        return values

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum over ranks, in place, in an order that is the library's."""
        if self.rehearsal.on:
            return part
        with self.calls:
            dist.all_reduce(part, group=self.handle)
        return part


ALONE = Group()
