"""What must be alike on all ranks, which may run on several machines: versions, and the files that they read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.models.drafters.checkpoint import DRAFTER_FILES
from outpace.models.sameness import digest_of
from outpace.models.source import locate
from outpace.version import __version__


def versions() -> str:
    """Of what computes here."""
    return f"Outpace {__version__} with torch {torch.__version__}"


def digests(model: str, drafter: str | None) -> tuple[str, ...]:
    """Of the files that this rank reads.

    Raises:
        CheckpointError: some cannot be read.
    """
    of_target = digest_of(locate(model).path)
    return (of_target,) if drafter is None else (of_target, digest_of(locate(drafter, DRAFTER_FILES).path))


def unlike_versions(of_ranks: Sequence[str]) -> tuple[int, str] | None:
    """The first rank that runs others than rank 0, and how that is said; None if all run the same."""
    for rank, theirs in enumerate(of_ranks):
        if theirs != of_ranks[0]:
            return rank, f"it runs {theirs}, but rank 0 {of_ranks[0]}: install the same on every machine"
    return None


def unlike_files(of_ranks: Sequence[tuple[str, ...]]) -> tuple[int, str] | None:
    """The same for what ranks read."""
    for rank, theirs in enumerate(of_ranks):
        for what, read, first in zip(("model", "drafter"), theirs, of_ranks[0], strict=False):
            if read != first:
                return rank, f"its files of the {what} are not those of rank 0: copy the same to every machine"
    return None
