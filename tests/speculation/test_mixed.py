"""Batches that differ much, in turn: what small ones earn in many short steps is not lost in a few long ones."""

from __future__ import annotations

import pytest

from speculation import test_control
from speculation.test_control import KS, Machine, Row, truth

SHORT, LONG = 64, 32768
"""Tokens of context of a row: a plain step of 64 rows with long ones takes 17 times as long as one of a single row."""
CYCLES = 8000


@pytest.mark.parametrize("catch_up", [0.5, 2.0, 6.0])
@pytest.mark.parametrize(("num_small", "num_large"), [(100, 3), (100, 10), (400, 4)])
def test_what_a_large_batch_loses_is_a_small_part_of_the_time(
    num_small: int, num_large: int, catch_up: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request that does not draft, and now and then 64 whose drafts never stand."""
    monkeypatch.setattr(test_control, "CATCH_UP", catch_up)
    machine = Machine(1, SHORT, lambda row, at: 0.0)
    small, large = [Row(0, SHORT, None)], [Row(max(KS), LONG, machine.control.start()) for _ in range(64)]
    plain = 0.0
    for cycle in range(CYCLES):
        rows, context = (small, SHORT) if cycle % (num_small + num_large) < num_small else (large, LONG)
        machine.num_rows = len(rows)
        machine._cycle(rows, None)
        for row in rows:
            row.num_cached = context
        plain += truth(len(rows), 0, len(rows) * context)
    assert plain / machine.clock > 0.97
