"""What torchrun told this process; needs no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from outpace.errors import ConfigError

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Launched:
    """One process of torchrun's."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    """Ranks on this machine."""
    first: str
    """The address of the first rank's machine."""


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun would tell a process of this machine: `launched` finds it there."""
    values = (rank, rank, size, size, "127.0.0.1", port)
    return dict(zip(NAMES, map(str, values), strict=True))


def launched() -> Launched | None:
    """None where this process was started by hand.

    Raises:
        ConfigError: it has a rank, and the rest is missing: taken for one alone, it would start ranks of its own.
    """
    missing = [name for name in NAMES if name not in os.environ]
    if missing and not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return None
    if missing:
        raise ConfigError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start ranks with torchrun, or unset RANK"
        )
    rank, local_rank, size, local_size = (int(os.environ[name]) for name in NAMES[:4])
    return Launched(rank, local_rank, size, local_size, os.environ["MASTER_ADDR"])
