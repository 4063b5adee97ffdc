"""What metrics say of graphs: cycles and prefills apart, and only where there are graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.test_lookahead import ahead
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.server.engine_client.totals import Totals
from outpace.server.monitoring.metrics import Metrics
from outpace.server.wire import State

CLIENT: Any = SimpleNamespace(
    desk=SimpleNamespace(totals=Totals(), num_running=0, num_waiting=0), num_deaths=0, ready=True
)


def told(llm: LLM) -> dict[str, float]:
    graphs = llm.engine.runner.describe()
    state = State(ask=1, pages={}, k=0, why="", weighed=None, control={}, graphs=graphs, phases=[], preempted=0)
    lines = Metrics(CLIENT).text(state).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.parametrize("framed", [True, False])
def test_cycles_and_prefills_are_counted_by_how_they_ran(framed: bool) -> None:
    target = tiny_target(seed=150, max_positions=512)
    llm = engine(target, tiny_drafter(target), prefill_chunk=512)
    llm = ahead(llm, 1) if framed else llm
    llm.generate([[1] * 9], SamplingParams(max_tokens=6))
    llm.generate([[2] * 300], SamplingParams(max_tokens=1))
    found = told(llm)
    if not framed:
        assert not any("shapes" in name or "device" in name for name in found)
        return
    described = llm.engine.runner.describe()
    for what, graphs in (("cycle", described), ("prefill", described["prefill"])):
        assert found[f'outpace_{what}_shapes{{as="graph"}}'] == graphs["captured"] == 0
        assert found[f'outpace_{what}_shapes{{as="eager"}}'] == len(graphs["eager"]) > 0
        assert found[f'outpace_device_{what}s_total{{as="graph"}}'] == 0
        assert found[f'outpace_device_{what}s_total{{as="eager"}}'] == graphs["eager_replays"] > 0
    assert found['outpace_device_prefills_total{as="no_frame"}'] == 1
