"""Grammars on a GPU: a cycle in three graphs with the host between, and the answers of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.test_grammars import PET, PROMPTS, params, tokens
from engine.tiny import engine, tiny_drafter
from engine.worded import worded_target
from outpace import Grammar, SamplingParams
from outpace.engine.ticket import Ticket
from outpace.types import CyclePlan, Plan

pytestmark = pytest.mark.gpu
MIXED = [params(PET), SamplingParams(max_tokens=30, temperature=0.9, seed=1), params(Grammar.regex("[ab]+c"), top_k=5)]


@pytest.mark.parametrize("k", [0, 1, 4])
def test_answers_are_the_cpus(k: int) -> None:
    expected = tokens(engine(worded_target()).generate(PROMPTS, MIXED))
    target = worded_target()
    target.model.to("cuda")
    llm = engine(target, tiny_drafter(target).to("cuda") if k else None, k=k)
    for _ in range(2):
        assert tokens(llm.generate(PROMPTS, MIXED)) == expected
    described = llm.describe()["graphs"]
    assert not described["eager"] and described["captured"] > 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_waits_for_the_drafts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises on any other synchronisation inside a cycle, once its graphs are there."""
    target = worded_target()
    target.model.to("cuda")
    llm = engine(target, tiny_drafter(target).to("cuda"))
    llm.generate(PROMPTS, MIXED)
    enqueue, num_cycles = llm.engine.runner.enqueue, 0

    def watched(plan: Plan, *masks: Any) -> Ticket:
        nonlocal num_cycles
        cycles = isinstance(plan, CyclePlan)
        num_cycles += cycles and bool(masks)
        torch.cuda.set_sync_debug_mode("error" if cycles else "default")
        try:
            return enqueue(plan, *masks)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(llm.engine.runner, "enqueue", watched)
    llm.generate(PROMPTS, MIXED)
    assert num_cycles
