"""An engine that is looked into: what it reports, and that it reports nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine import runner
from outpace.lab.demo.observe import observed

PARAMS = SamplingParams(max_tokens=12)


@pytest.fixture
def llm() -> LLM:
    target = tiny_target()
    return engine(target, tiny_drafter(target), k=2, control="auto")


def test_only_forwards_of_requests_are_reported_whatever_the_engine_measured_for_itself(llm: LLM) -> None:
    calls: list[str] = []
    watched = observed(llm, lambda name, logits: calls.append(name))
    assert llm.config.control == "auto" and calls == []
    (plain,) = llm.generate([1, 2, 3], PARAMS)
    (result,) = watched.generate([1, 2, 3], PARAMS)
    assert result.token_ids == plain.token_ids
    assert calls.count("verify") == calls.count("logits") == 1 + result.stats.cycles


def test_the_last_logits_before_a_chunk_chose_it(llm: LLM) -> None:
    last: list[Tensor] = []

    def keep(name: str, logits: Tensor | None) -> None:
        if logits is not None:
            last[:] = [logits]

    for chunk in observed(llm, keep).stream([1, 2, 3], PARAMS):
        assert last[0][0, : len(chunk.token_ids)].argmax(-1).tolist() == list(chunk.token_ids)


def test_it_is_eager_and_keeps_nothing_in_flight(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cycles would be graphs: a replay calls nobody, and a forward ahead would be reported too early."""
    made: list[Any] = []
    config = observed(llm, lambda name, logits: None).config
    real = runner.State.allocate

    def on_a_gpu(**sizes: Any) -> Any:
        state = real(**sizes)

        class Elsewhere:
            device = type("Device", (), {"type": "cuda"})()

            def __getattr__(self, name: str) -> Any:
                return getattr(state, name)

        return Elsewhere()

    monkeypatch.setattr(runner.State, "allocate", on_a_gpu)
    monkeypatch.setattr(runner, "Frames", lambda *parts, **options: made.append(parts))
    pair = llm.engine._pair
    assert runner.Runner(pair, llm.config).num_ahead == 1 and len(made) == 1
    eager = runner.Runner(pair, config)
    assert eager.num_ahead == 0 and eager.frames is None and len(made) == 1
    assert eager.describe() == {"why_none": "eager was asked for"}
