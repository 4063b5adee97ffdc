"""The same engine on a GPU: the same answers, speculative or plain."""

from __future__ import annotations

import pytest
import torch

from engine.test_lossless import answers, prompts, sampled
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine.runner import Ticket
from outpace.types import CyclePlan, Plan

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
def test_no_host_read_inside_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises on any synchronisation between the Plan and the Outcome."""
    target = tiny_target(seed=42)
    target.model.to("cuda")
    llm = engine(target, tiny_drafter(target).to("cuda"))
    num_cycles = 0
    enqueue = llm.engine.runner.enqueue

    def watched(plan: Plan) -> Ticket:
        nonlocal num_cycles
        cycles = isinstance(plan, CyclePlan)
        num_cycles += cycles
        torch.cuda.set_sync_debug_mode("error" if cycles else "default")
        try:
            return enqueue(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(llm.engine.runner, "enqueue", watched)
    llm.generate(prompts(4, seed=42), SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9))
    assert num_cycles
