"""The same engine on a GPU: the same answers, speculative or plain."""

from __future__ import annotations

from statistics import median

import pytest
import torch

from engine.curious import asking_the_host
from engine.test_lossless import answers, prompts, sampled
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine.calibrate import time_marked, time_phases
from outpace.engine.ticket import Ticket
from outpace.types import CyclePlan, Plan, PrefillPlan, SamplingKind

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("k", [1, 4, 15])
def test_speculative_equals_plain_on_the_gpu(k: int) -> None:
    target = tiny_target(seed=40)
    target.model.to("cuda")
    batch = prompts(12, seed=40)
    for params in (SamplingParams(max_tokens=24), sampled(12)):
        plain = engine(target).generate(batch, params)
        drafter = tiny_drafter(target).to("cuda")
        assert answers(engine(target, drafter, k=k).generate(batch, params)) == answers(plain)


def test_gpu_and_cpu_agree() -> None:
    batch = prompts(12, seed=41)
    params = sampled(12)
    on_cpu = engine(tiny_target(seed=41)).generate(batch, params)
    target = tiny_target(seed=41)
    target.model.to("cuda")
    assert answers(engine(target).generate(batch, params)) == answers(on_cpu)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_host_read_while_graphs_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises on any synchronisation between the Plan and the Outcome, of cycles and of prefills. A capture may
    wait: the same was asked before, so every shape is there."""
    target = tiny_target(seed=42)
    target.model.to("cuda")
    llm = engine(target, tiny_drafter(target).to("cuda"), prefix_reuse=False)
    batch, params = prompts(4, seed=42), SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=7)
    llm.generate(batch, params)
    before = captured(llm)
    seen: set[type[Plan]] = set()
    enqueue = llm.engine.runner.enqueue

    def watched(plan: Plan) -> Ticket:
        seen.add(type(plan))
        torch.cuda.set_sync_debug_mode("error")
        try:
            return enqueue(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(llm.engine.runner, "enqueue", watched)
    llm.generate(batch, params)
    assert seen == {CyclePlan, PrefillPlan}
    assert captured(llm) == before and min(before) > 0, "nothing but replays was watched"


def captured(llm: LLM) -> tuple[int, int]:
    """Graphs of cycles, and of prefills."""
    graphs = llm.describe()["graphs"]
    assert graphs["eager"] == graphs["prefill"]["eager"] == []
    return graphs["captured"], graphs["prefill"]["captured"]


def test_a_cycle_that_cannot_be_captured_runs_eagerly_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sampled cycles ask the host something; greedy ones stay graphs, before and after."""
    target = tiny_target(seed=43)
    target.model.to("cuda")
    batch = prompts(4, seed=43)
    kinds = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.9, seed=1)]
    expected = [answers(engine(target).generate(batch, params)) for params in kinds]
    asked = asking_the_host(monkeypatch, lambda cycle: cycle.sampling.kind is SamplingKind.SAMPLED)
    llm = engine(target, tiny_drafter(target).to("cuda"))
    for index in (0, 1, 0, 1):
        assert answers(llm.generate(batch, kinds[index])) == expected[index]
    described = llm.describe()["graphs"]
    assert asked and described["captured"] > 0 and described["eager_replays"] > 0
    assert {eager["sampling"] for eager in described["eager"]} == {"sampled"}
    assert all(eager["why"] for eager in described["eager"])
    assert "cycles of" in caplog.text and "run without a graph" in caplog.text
    assert torch.randn(3, device="cuda").isfinite().all(), "torch draws again"


def test_phases_of_a_graph_add_up() -> None:
    target = tiny_target(seed=44)
    target.model.to("cuda")
    llm = engine(target, tiny_drafter(target).to("cuda"))
    runner = llm.engine.runner
    for phases in time_phases(runner, 2, 3, 16, 4):
        assert set(phases) == {"draft", "verify", "accept"}
        assert all(0.0 < seconds < 0.1 for seconds in phases.values())
    llm.generate(prompts(2, seed=44), SamplingParams(max_tokens=8))


def test_phases_of_marked_graphs_lie_within_their_cycles() -> None:
    """What the marks within say, and the events around."""
    target = tiny_target(seed=44)
    target.model.to("cuda")
    runner = engine(target, tiny_drafter(target).to("cuda")).engine.runner
    marked = time_marked(runner, 2, 3, 16, 16)
    assert len(marked.cycles) == len(marked.phases) == 16
    assert all(gap >= 0.0 for gap in marked.gaps), "empty where the host was too slow to stay ahead of so small a model"
    assert median(sum(phases.values()) for phases in marked.phases) < 1.1 * median(marked.cycles)
