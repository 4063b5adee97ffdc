"""A whole profile where there are graphs, and a profiler that sees the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.lab.profile.contenders import write_trace
from outpace.lab.profile.kineto import NUM_TRACED
from outpace.lab.profile.run import ENGINE, ProfileSettings, profile

pytestmark = pytest.mark.gpu
PROMPT = [1, 2, 3, 4]


def small() -> LLM:
    target = tiny_target(seed=47)
    target.model.to("cuda")
    return engine(target, tiny_drafter(target).to("cuda"), **(ENGINE | {"k": 2}))


def test_graphs_and_cycles_without_are_taken_apart() -> None:
    record = profile(small(), [PROMPT], ProfileSettings(max_tokens=64, num_rounds=2), dict)
    graph, eager = record.ways
    assert graph.timing is not None and eager.timing is None
    assert graph.phases_ms["verify"] < eager.phases_ms["verify"]
    assert not [note for note in record.notes if "missing" in note or "could not be captured" in note]
    for way in record.ways:
        parts = {(part.phase, part.name): part for part in way.parts}
        assert parts["verify", "attention"].count >= 3 and parts["draft", "attention"].count >= 2
        assert way.in_no_part_ms("verify") == pytest.approx(0.0, abs=1e-6)
        assert way.gaps_ms >= 0.0


def test_a_chrome_trace_holds_the_devices_kernels_of_few_cycles(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(small(), (PROMPT, SamplingParams(max_tokens=90, ignore_eos=True)), path)
    events = json.loads(path.read_text())["traceEvents"]
    ends = sum(event.get("cat") == "kernel" and event.get("name") == "_settle" for event in events)
    assert NUM_TRACED <= ends <= NUM_TRACED + 4, "those that settle, and what is in flight at either end"
