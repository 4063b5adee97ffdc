"""What the line about speed says of drafts and of graphs, between one look and the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outpace.server.engine_client.totals import Totals
from outpace.server.monitoring.reporting import graph_hit_rate, line
from outpace.server.wire import State


def graphs(replays: int, eager: int) -> dict[str, Any]:
    return {"captured": 3, "replays": replays, "eager_replays": eager}


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        ({}, graphs(10, 1), 0.9),
        (graphs(1000, 1000), graphs(1100, 1000), 1.0),
        (graphs(1000, 0), graphs(1100, 50), 0.5),
        (graphs(1000, 0), graphs(8, 2), 0.75),  # another process
        (graphs(10, 1), graphs(10, 1), None),
        ({"why_none": "a CPU"}, {"why_none": "a CPU"}, None),
    ],
)
def test_the_hit_rate_is_that_of_the_interval(before: dict[str, Any], now: dict[str, Any], rate: float | None) -> None:
    assert graph_hit_rate(before, now) == rate


IDLE: Any = SimpleNamespace(desk=SimpleNamespace(num_running=1, num_waiting=0))
WEIGHED = {"k": 3, "accept_length": 2.4, "break_even": 1.6}


def test_the_accept_length_is_of_the_cycles_that_drafted_in_the_interval() -> None:
    """Of 10 cycles 4 were plain steps, which emitted a token each: 18 tokens came from the other 6."""
    before = Totals(tokens=100, cycles=40, emitted=90, drafted_at=(30, 20), accepted_at=(20, 10))
    now = Totals(tokens=122, cycles=50, emitted=112, drafted_at=(36, 26), accepted_at=(26, 16))
    assert line(IDLE, before, now, 2.0, None)["accept_length"] == 3.0
    plain = Totals(tokens=110, cycles=50, emitted=100, drafted_at=(30, 20), accepted_at=(20, 10))
    assert line(IDLE, before, plain, 2.0, None)["accept_length"] is None, "a plain step says nothing of drafts"


def test_the_line_tells_both_figures_of_the_k_that_its_reason_speaks_of() -> None:
    state = State(ask=1, pages={}, k=0, why="because", weighed=WEIGHED, control={}, graphs={}, phases=[], preempted=0)
    told = line(IDLE, Totals(), Totals(), 1.0, state)
    assert (told["k"], told["why"], told["weighed"]) == (0, "because", WEIGHED)
