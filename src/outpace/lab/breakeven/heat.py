"""Maps of where speculation pays: speed over plain decoding in two directions, as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.lab.breakeven.balance import Balance
from outpace.lab.breakeven.best_k import best
from outpace.lab.breakeven.cost_rows import CONTEXTS, CostRows

VERIFY_STEPS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
ACCEPT_LENGTHS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
SAME = 0.03
"""A row or column this near to today's own, as a part of it, is left out for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """`values[row][column]` is speed over plain decoding; `notes` says a little more of each cell, or is empty."""

    down: str
    """What the rows are."""
    across: str
    """What the columns are."""
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    notes: Sequence[Sequence[str]] = ()
    here: tuple[int, int] | None = None
    """Row and column of the figures that were given."""

    @property
    def title(self) -> str:
        return f"{self.down} (down) × {self.across} (across)"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "down": self.down,
            "across": self.across,
            "rows": list(self.rows),
            "columns": list(self.columns),
            "ratio": [[round(value, 4) for value in row] for row in self.values],
            "notes": [list(row) for row in self.notes],
            "here": self.here,
        }


def by_acceptance_and_verify(balance: Balance) -> Heat:
    """Accept length down, cost of a verify in plain steps across; draft and rest as they are."""
    most = ACCEPT_LENGTHS[-1] if balance.k is None else balance.k + 1.0
    down = _with(balance.accept_length, [length for length in ACCEPT_LENGTHS if length <= most])
    across = _with(balance.verify_steps, VERIFY_STEPS)
    rest = balance.draft_steps + balance.rest_steps
    return Heat(
        down="accept length" if balance.k is None else "accept length, drafts accepted",
        across="verify in plain steps",
        rows=[_accept_label(length, balance.k) for length in down],
        columns=[f"{steps:.2f}" for steps in across],
        values=[[length / (steps + rest) for steps in across] for length in down],
        here=(down.index(balance.accept_length), across.index(balance.verify_steps)),
    )


def by_batch_and_context(costs: CostRows, acceptance: Sequence[float]) -> Heat:
    """Rows of a batch down, tokens of context of each across; every cell takes its best k, which the note says."""
    cells = [[best(costs.choices(bucket, context, acceptance)) for context in CONTEXTS] for bucket in costs.buckets]
    return Heat(
        down="batch, with its best k",
        across="context of each row",
        rows=[str(bucket) for bucket in costs.buckets],
        columns=[f"{context:,}" for context in CONTEXTS],
        values=[[cell.speedup for cell in row] for row in cells],
        notes=[[f"k{cell.k}" for cell in row] for row in cells],
    )


def _with(own: float, others: Sequence[float]) -> list[float]:
    return sorted([own, *(other for other in others if abs(other - own) > SAME * own)])


def _accept_label(length: float, k: int | None) -> str:
    return f"{length:.2f}" if not k else f"{length:.2f} ({100 * (length - 1) / k:.0f}%)"
