"""How programs walk through a row's past in attention of few tokens, by what measured best on an H200 (docs/log.md)."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_T = 64
"""Positions that a program reads at a time."""
WARPS = 4
MULTIPROCESSORS = 132
ENOUGH = 200
"""So many programs fill the GPU without splits, which would cost more than they bring."""
MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Walk:
    """In how many splits the past is read, and how much of it a program has on its way."""

    splits: int
    """A power of two: each number is a compilation."""
    stages: int
    """Three buffer one block, five buffer two."""


def walk_of(num_programs: int, reach: int, max_splits: int | None) -> Walk:
    """The walk for so many rows and KV heads, times each other.

    Two buffers pay where long walks leave a multiprocessor two programs at most. Elsewhere their room is worth more to
    the programs beside them, and to the kernel that comes next.

    Args:
        num_programs: without splits.
        reach: positions that the page table has.
        max_splits: most splits; None chooses.
    """
    if max_splits is None:
        most = min(4 * MULTIPROCESSORS // num_programs, MAX_SPLITS, reach // BLOCK_T)
        max_splits = most if num_programs < ENOUGH else 1
    splits = 1 << (max(1, max_splits).bit_length() - 1)
    return Walk(splits, 5 if splits == 1 and num_programs <= 2 * MULTIPROCESSORS else 3)
