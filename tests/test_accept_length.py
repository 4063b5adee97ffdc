"""Accept length is one number everywhere: tokens of a cycle that drafted."""

from __future__ import annotations

import pytest

from outpace import RequestStats
from outpace.types import accept_length


@pytest.mark.parametrize(
    ("cycles", "emitted", "drafted_at", "length"),
    [
        (10, 30, (10, 10), 3.0),
        (10, 22, (6, 6), 3.0),  # 4 plain steps emitted 4 of these tokens
        (10, 10, (), None),
        (0, 0, (), None),
        (10, 10, (10, 9), 1.0),  # no draft stood
        (5, 3, (2,), 1.0),  # a stop string cut tokens off cycles that stay counted
    ],
)
def test_plain_steps_are_left_out(cycles: int, emitted: int, drafted_at: tuple[int, ...], length: float | None) -> None:
    assert accept_length(cycles, emitted, drafted_at) == length
    stats = RequestStats(cycles=cycles, emitted=emitted, drafted_at=drafted_at, accepted_at=drafted_at, reused=0)
    assert stats.accept_length == (length or float(cycles > 0))
