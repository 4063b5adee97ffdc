"""What was saved up is not lost at one go: over every window of a while the loss stays within the budget too.

On a simulated clock, in plain steps: drafts pay long enough to save up all that may be saved, and then none stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from outpace.speculation import credit
from speculation import test_control
from speculation.test_control import KS, Machine, Row, truth

CONTEXT = 512
CYCLES = 4000
WINDOW, LONG_WINDOW = 2000.0, 3200.0
"""Plain steps; the long one where a catch-up takes as much as it may be charged."""

RATES: dict[str, Callable[[int], float]] = {
    "collapses": lambda cycle: 0.9 if cycle < 1500 else 0.0,
    "comes and goes": lambda cycle: 0.9 if cycle % 1500 < 300 else 0.0,
}


def cycles(num_rows: int, rate: Callable[[int], float]) -> list[tuple[float, float]]:
    """(plain steps that it took, tokens a row) of each, of rows that never end, behind a context that stays."""
    machine = Machine(num_rows, CONTEXT, lambda row, at: rate(len(machine.ks)))
    rows = [Row(max(KS), CONTEXT, machine.control.start()) for _ in range(num_rows)]
    step_s, found = truth(num_rows, 0, num_rows * CONTEXT), []
    for _ in range(CYCLES):
        began, before = machine.clock, sum(row.num_new for row in rows)
        machine._cycle(rows, None)
        for row in rows:
            row.num_cached = CONTEXT
        tokens = sum(row.num_new for row in rows) - before
        found.append(((machine.clock - began) / step_s, tokens / num_rows))
    return found


def largest_loss(found: list[tuple[float, float]], window: float) -> float:
    """Part of its time that the worst window lost against plain decoding."""
    kept: deque[tuple[float, float]] = deque()
    steps = tokens = worst = 0.0
    for cycle in found:
        kept.append(cycle)
        steps, tokens = steps + cycle[0], tokens + cycle[1]
        while steps - kept[0][0] >= window:
            first = kept.popleft()
            steps, tokens = steps - first[0], tokens - first[1]
        if steps >= window:
            worst = max(worst, 1.0 - tokens / steps)
    return worst


@pytest.mark.parametrize(("catch_up", "window"), [(0.5, WINDOW), (6.0, WINDOW), (12.0, LONG_WINDOW)])
@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("rate", RATES)
def test_no_window_loses_more_than_it_may(
    rate: str, num_rows: int, catch_up: float, window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_control, "CATCH_UP", catch_up)
    found = cycles(num_rows, RATES[rate])
    assert largest_loss(found, window) < 0.03


def test_a_window_would_lose_more_if_all_that_was_gained_could_be_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "MOST_CREDIT", 1e9)
    assert largest_loss(cycles(1, RATES["collapses"]), WINDOW) > 0.06
