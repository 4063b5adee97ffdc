"""Automatic control in the engine: it drafts with a drafter that is right, leaves one that is wrong, and says so."""

from __future__ import annotations

import json

import pytest

from engine.test_lossless import answers, prompts, whole
from engine.tiny import OracleDrafter, engine, tiny_target
from outpace import LLM, ConfigError, EngineConfig, SamplingParams
from outpace.models.registry import LoadedTarget
from outpace.speculation.control import AutomaticControl
from outpace.speculation.cost import CostTable

LONG = SamplingParams(max_tokens=90)


def controlled(target: LoadedTarget, known: list[tuple[int, ...]], accuracy: float, cycle: float) -> LLM:
    """An engine whose table says that a cycle takes so many plain steps, whatever this machine's clock says."""
    llm = engine(target, OracleDrafter(known, accuracy))
    costs = CostTable((1, 16), (0, 2, 4))
    for bucket in (1, 16):
        for k, steps in ((0, 1.0), (2, (1 + cycle) / 2), (4, cycle)):
            costs.set(bucket, k, [(0, steps)])
    control = AutomaticControl(costs)
    control.observe = lambda seen: None  # type: ignore[method-assign]
    llm.engine.control = llm.engine.scheduler.control = control
    return llm


@pytest.mark.parametrize(("accuracy", "cycle", "drafts"), [(1.0, 1.3, True), (0.0, 1.3, False), (1.0, 9.0, False)])
def test_it_drafts_where_that_pays(accuracy: float, cycle: float, drafts: bool) -> None:
    target = tiny_target(seed=80)
    batch = [prompt[:8] for prompt in prompts(3, seed=81)]
    plain = engine(target).generate(batch, LONG)
    llm = controlled(target, whole(plain), accuracy, cycle)
    found = llm.generate(batch, LONG)
    assert answers(found) == answers(plain)
    decision = llm.engine.control.describe()
    assert (decision["k"] > 0) == drafts, decision
    assert "breaks even at" in decision["why"]
    drafted = sum(result.stats.drafted for result in found)
    assert drafted > 100 if drafts else drafted < 100


def test_by_default_the_engine_calibrates_itself_and_shows_what_it_found() -> None:
    target = tiny_target(seed=82)
    batch = prompts(3, seed=83)
    plain = answers(engine(target).generate(batch, LONG))
    llm = engine(target, OracleDrafter([], 0.0), control="auto")
    assert answers(llm.generate(batch, LONG)) == plain
    shown = json.loads(json.dumps(llm.describe()))["control"]
    assert shown["kind"] == "auto"
    assert {row["k"] for row in shown["costs"] if row["bucket"] == 1} == {0, 1, 2, 3, 4}
    assert all(row["base_ms"] > 0 for row in shown["costs"])


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(ConfigError, match='"auto" or "fixed"'):
        EngineConfig(control="always")  # type: ignore[arg-type]
