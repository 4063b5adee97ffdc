"""How programs walk through a row's past, by what measured best on an H200 (docs/log.md)."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_T = 64
"""Positions that a program reads at a time."""
WARPS = 4
MULTIPROCESSORS = 132
ENOUGH = 200
"""So many programs fill the GPU without splits, which would cost more than they bring."""
MAX_SPLITS = 64
LEAST = 256
"""Positions that a split has at least where many tokens follow: to write a part and read it again takes as long as some
hundred."""


@dataclass(frozen=True, slots=True)
class Walk:
    """In how many splits the past is read, and how much of it a program has on its way."""

    splits: int
    stages: int
    """Three buffer one block, five buffer two."""


def walk_of(num_programs: int, head_bytes: int, reach: int, max_splits: int | None) -> Walk:
    """The walk for so many rows and KV heads, times each other.

    Two buffers pay where there are splits, or two programs a multiprocessor at most. With more of them their room is
    worth more to those that come next.

    Args:
        num_programs: without splits.
        head_bytes: of a key of one head; very long ones leave no room for two buffers.
        reach: positions that the page table has.
        max_splits: most splits; None chooses.
    """
    if max_splits is None:
        most = min(4 * MULTIPROCESSORS // num_programs, MAX_SPLITS, reach // BLOCK_T)
        max_splits = most if num_programs < ENOUGH else 1
    splits = splits_within(max_splits)
    pays = splits > 1 or num_programs <= 2 * MULTIPROCESSORS
    return Walk(splits, stages=5 if pays and head_bytes <= 512 else 3)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Which queries programs take where many tokens follow, and in how many splits they read the past."""

    queries: int
    """Of a program, which share a KV head; a power of two."""
    warps: int
    splits: int
    stages: int


def tiling_of(
    num_rows: int, num_tokens: int, num_heads: int, num_kv_heads: int, head_bytes: int, max_splits: int | None
) -> Tiling:
    """The tiling for so many tokens a row; what is split is split as if they were filled up to a power of two.

    A program has as many queries as a multiprocessor has room for, with two blocks on their way, so that keys are read
    the less often. Programs that leave multiprocessors without work are split.

    Args:
        num_rows: B.
        num_tokens: a row.
        num_heads: of the queries.
        num_kv_heads: of the keys.
        head_bytes: of a key of one head; longer ones leave no room for 128 queries.
        max_splits: most splits; None chooses.
    """
    group = num_heads // num_kv_heads
    filled = group * _filled(num_tokens)
    queries = min(128 if head_bytes <= 256 else 64, max(16, _filled(filled)))
    if max_splits is None:
        max_splits = min(MULTIPROCESSORS // (-(-filled // queries) * num_kv_heads * num_rows), MAX_SPLITS)
    splits = splits_within(max_splits)
    return Tiling(queries, warps=8 if queries > 64 else 4, splits=splits, stages=5 if queries > 64 else 3)


def splits_within(most: int) -> int:
    """As many as a power of two allows, one at least: each number is a compilation of the kernel that joins them."""
    return 1 << (max(1, most).bit_length() - 1)


def _filled(num: int) -> int:
    """Up to a power of two."""
    return 1 << (num - 1).bit_length()
