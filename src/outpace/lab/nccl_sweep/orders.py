"""What a measuring process is told, and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

Operation = Literal["gather", "all_reduce"]
Mode = Literal["graph", "eager"]


class Job(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """Join the others and time collectives of [rows, hidden]."""

    rank: int
    size: int
    port: int
    """Of the store where ranks meet."""
    device: str
    rows: tuple[int, ...]
    hidden: int
    dtype: str


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One collective, and how it is launched."""

    operation: Operation
    rows: int
    mode: Mode
    us: float
    """Microseconds of one."""


class Timed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """A rank's answer."""

    observed: dict[str, str]
    """NCCL's settings as the process sees them."""
    said: dict[str, str]
    """Those that NCCL itself said it took from the environment."""
    cells: tuple[Cell, ...]


class Failed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """The rank raised."""

    message: str
