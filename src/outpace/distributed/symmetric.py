"""Memory that every rank of a group maps, through PyTorch's symmetric memory; or why there is none.

Peers are mapped one by one: multicast (NVLS) is not asked for.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from outpace.distributed import nccl
from outpace.distributed.group import Group

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Window:
    """One rank's memory and its view of the others'."""

    addresses: Tensor
    """int64 [size] on the device: where this process maps each rank's memory, which begins as zeros."""
    kept: tuple[Any, ...]
    """What must live as long as the addresses are used."""


def agree(group: Group, device: torch.device, why_not: str | None) -> str | None:
    """None if every rank says None, else what the first rank that objects says, on that rank, and a hint to it on the
    others. All ranks call this together."""
    objects = torch.tensor([0 if why_not is None else 1], dtype=torch.int32, device=device)
    votes = group.by_library(objects).flatten().tolist()
    if not any(votes):
        return None
    return why_not or f"rank {votes.index(1)} could not"


def attempt(call: Callable[[], Value]) -> tuple[Value | None, str | None]:
    """What it returns, or why it could not, in a line."""
    try:
        return call(), None
    except (RuntimeError, AttributeError, TypeError, ValueError, ImportError) as error:
        return None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"


def open_window(group: Group, device: torch.device, num_bytes: int) -> Window | str:
    """Memory of `num_bytes` on every rank, all of it mapped by all; or why there is none, the same kind of answer on
    every rank. All ranks call this together."""
    if device.type != "cuda":
        return "there is none without GPUs"
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # else torch sets it up wherever it can
    if why := agree(group, device, _why_no_peers(group, device)):
        return why
    buffer, why = attempt(lambda: _empty(num_bytes, device))
    if why := agree(group, device, why):
        return why
    assert buffer is not None
    window, why = attempt(lambda: _rendezvous(group, buffer))
    if why := agree(group, device, why):
        return why
    assert window is not None
    buffer.zero_()
    torch.cuda.synchronize(device)
    agree(group, device, None)  # nobody writes before all are zero
    return window


def _empty(num_bytes: int, device: torch.device) -> Tensor:
    return symmetric.empty(num_bytes, dtype=torch.uint8, device=device)


def _rendezvous(group: Group, buffer: Tensor) -> Window:
    handle = symmetric.rendezvous(buffer, group.handle.group_name)
    found = [handle.get_buffer(rank, (1,), torch.uint8).data_ptr() for rank in range(group.size)]
    offset = buffer.data_ptr() - found[group.rank]  # an allocation may begin before the tensor, on every rank alike
    addresses = torch.tensor([address + offset for address in found], dtype=torch.int64, device=buffer.device)
    return Window(addresses, (buffer, handle))


def _why_no_peers(group: Group, device: torch.device) -> str | None:
    """All ranks call this together, since it compares where they are."""
    here = torch.tensor([_machine(), device.index or 0], dtype=torch.int64, device=device)
    places = [tuple(place) for place in group.by_library(here).tolist()]
    if len({machine for machine, _ in places}) > 1:
        return "ranks lie on several machines"
    if nccl.num_started() > 1:  # torch counts rendezvous by process, and would wait for ranks that count otherwise
        return "this process was in a group before, and torch maps memory for the first one: take a new process"
    indices = [index for _, index in places]
    if len(set(indices)) < group.size:
        return None  # each sees its own GPU alone, under one number: the rendezvous will tell
    for other in indices:
        visible = other < torch.cuda.device_count() and other != indices[group.rank]
        if visible and not torch.cuda.can_device_access_peer(device.index or 0, other):
            return f"GPU {device.index or 0} cannot reach the memory of GPU {other} (no P2P)"
    return None


def _machine() -> int:
    """The same number for all processes of one boot of one machine."""
    return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
