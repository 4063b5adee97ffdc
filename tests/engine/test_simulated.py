"""Simulated acceptance: the chances that were asked for, and a mark on everything that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.test_lossless import answers, prompts
from engine.test_pages import assert_all_back
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, ConfigError, EngineConfig, SamplingParams

CHANCES = (0.9, 0.6, 0.3)


def test_drafts_are_accepted_with_the_chances_that_were_asked_for() -> None:
    target = tiny_target(seed=90)
    llm = engine(target, tiny_drafter(target), simulate_acceptance=CHANCES)
    batch = prompts(16, seed=91, longest=8)
    params = [SamplingParams(max_tokens=100, seed=seed) for seed in range(96)]  # one seed would give one run 96 times
    results = llm.generate(batch * 6, params)
    drafted, accepted = (
        [sum(getattr(r.stats, name)[place] for r in results) for place in range(4)]
        for name in ("drafted_at", "accepted_at")
    )
    reached = [drafted[0], *accepted[:3]]
    rates = [a / n for a, n in zip(accepted, reached, strict=True)]
    assert rates == pytest.approx([0.9, 0.6, 0.3, 0.3], abs=0.04)
    assert_all_back(llm)


def test_simulated_answers_say_so_and_real_ones_do_not() -> None:
    target = tiny_target(seed=92)
    batch = prompts(2, seed=93)
    simulated = engine(target, tiny_drafter(target), simulate_acceptance=(1.0,))
    for result in simulated.generate(batch, SamplingParams(max_tokens=9)):
        assert result.stats.simulated and result.stats.as_dict()["simulated"]
    assert all(chunk.stats.simulated for chunk in simulated.stream(batch[0], SamplingParams(max_tokens=9)))
    assert simulated.describe()["engine"]["simulate_acceptance"] == (1.0,)
    real = engine(target, tiny_drafter(target)).generate(batch, SamplingParams(max_tokens=9))
    assert not any(result.stats.simulated for result in real)


def test_without_chances_the_same_seed_gives_the_same_run() -> None:
    target = tiny_target(seed=94)
    batch = prompts(3, seed=95)
    params = SamplingParams(max_tokens=30, seed=4)
    first, second = (
        answers(engine(target, tiny_drafter(target), simulate_acceptance=CHANCES).generate(batch, params))
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("chances", [(1.1,), (-0.1,), (float("nan"),), (0.5,) * 16])
def test_chances_out_of_range_are_refused(chances: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="simulate_acceptance"):
        EngineConfig(simulate_acceptance=chances)


@pytest.mark.parametrize(("settings", "why"), [({"drafter": None}, "there is no drafter"), ({"k": 0}, "k is 0")])
def test_chances_of_drafts_that_nobody_makes_are_refused(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Before anything is loaded, and of models that are loaded already."""
    with pytest.raises(ConfigError, match=f"simulate_acceptance is of drafts, and {why}"):
        LLM(str(tmp_path), **{"drafter": "./drafter"} | settings, simulate_acceptance=CHANCES)
    target = tiny_target(seed=96)
    drafter = None if "drafter" in settings else tiny_drafter(target)
    with pytest.raises(ConfigError, match=f"simulate_acceptance is of drafts, and {why}"):
        LLM.from_parts(target, drafter, EngineConfig(k=settings.get("k", 4), simulate_acceptance=CHANCES))
