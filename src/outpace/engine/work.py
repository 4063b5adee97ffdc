"""Work: a plan, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

from outpace.engine.grammars.masks import Masks
from outpace.engine.sequence import Sequence
from outpace.types import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, and the sequences whose rows it takes, in the rows' order.

    One that has a row when this is collected has the row that it had: who gives its row back and returns does so while
    nothing is in flight (`Scheduler._reserve`, `Engine._rebuild`).
    """

    plan: Plan
    owners: tuple[Sequence, ...]
    masks: Masks | None = None
    """Makes the masks of rows whose token is chosen under a grammar."""


def rows_of(chosen: Listed[Sequence]) -> tuple[int, ...]:
    """The rows that sequences have."""
    return tuple(s.row for s in chosen)
