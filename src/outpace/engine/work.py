"""Work: a plan, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

from outpace.engine.grammars.masks import Masks
from outpace.engine.sequence import Sequence
from outpace.types import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, and whose rows it takes: (sequence, which admission of it)."""

    plan: Plan
    owners: tuple[tuple[Sequence, int], ...]
    masks: Masks | None = None
    """Makes the masks of rows whose token is chosen under a grammar."""


def work_of(plan: Plan, chosen: Listed[Sequence], masks: Masks | None = None) -> Work:
    """A plan for these sequences, in their rows' order."""
    return Work(plan, tuple((s, s.admission) for s in chosen), masks)


def rows_of(chosen: Listed[Sequence]) -> tuple[int, ...]:
    """The rows that sequences have."""
    return tuple(s.row for s in chosen)
