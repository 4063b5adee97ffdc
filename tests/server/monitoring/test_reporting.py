"""What the line about speed says of graphs, between one look and the next."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.server.monitoring.reporting import graph_hit_rate


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
