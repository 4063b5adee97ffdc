"""On a GPU short prefills are graphs, which compute what their operations compute one by one, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.test_lossless import answers
from engine.test_prefill_frames import KINDS, PAGE, PROMPTS, ids, left, plan_of
from engine.test_processing import FIELDS
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine import frames as module
from outpace.engine.graphs import Recorder
from outpace.engine.prefill_frames import PrefillShape, run_prefill
from outpace.engine.runner import Runner
from outpace.models.registry import LoadedTarget
from outpace.speculation.chosen import Chosen
from outpace.speculation.pair import Pair
from outpace.types import PrefillPlan, SamplingKind

pytestmark = pytest.mark.gpu

HALF = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "intermediate_size": 512}


def target_of(dtype: torch.dtype) -> LoadedTarget:
    """In 16 bits its products are those of kernels of ours."""
    target = tiny_target(seed=145, max_positions=512, **(HALF if dtype is torch.bfloat16 else {}))
    target.model.to(device="cuda", dtype=dtype)
    return target


def llm_of(target: LoadedTarget, **options: Any) -> LLM:
    drafter = tiny_drafter(target, seed=146).to(target.model.embed.weight)
    return engine(target, drafter, prefill_chunk=256, max_rows=3, **options)


def runner_of(llm: LLM, dtype: torch.dtype) -> Runner:
    """A runner over memory of its own."""
    pair = Pair.allocate(llm.target.model, llm.drafter, num_pages=400, page_size=PAGE, dtype=dtype)
    runner = Runner(pair, llm.config)
    runner.provide()
    return runner


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_has_the_bits_of_its_operations(dtype: torch.dtype, kind: str, fills: bool) -> None:
    """Over the same shape; and again, over what others left in the graph's memory."""
    llm = llm_of(target_of(dtype))
    graphs, one_by_one = runner_of(llm, dtype), runner_of(llm, dtype)
    assert graphs.frames is not None and one_by_one.frames is not None
    one_by_one.frames._recorder = Recorder(torch.device("cpu"), llm.target.model.group)
    for turn in range(2):
        for num in PROMPTS:
            for row, num_cached in ((0, 0), (1, num // PAGE * PAGE)):
                plan = plan_of((row,), [ids(num, turn + row)], num_cached, kind, fills=fills)
                assert graphs.enqueue(plan).read() == one_by_one.enqueue(plan).read()
                ours, theirs = left(graphs), left(one_by_one)
                for name, expected in theirs.items():
                    assert torch.equal(ours[name], expected), f"{name} after {num} tokens"
    told = graphs.describe()["prefill"]
    assert told["captured"] == 3 and told["eager"] == [] and told["no_frame"] == 0
    assert told["replays"] == 4 * len(PROMPTS) and told["eager_replays"] == 0
    assert one_by_one.describe()["prefill"]["eager_replays"] == 4 * len(PROMPTS)


def test_answers_are_those_of_an_eager_engine() -> None:
    """In float32; several rows, and again behind prefixes that are known."""
    target = target_of(torch.float32)
    batch = [list(ids(num, seed)) for seed in (3, 4) for num in PROMPTS]
    fields: list[dict[str, Any]] = [{}, {"temperature": 0.8}, FIELDS["all"] | {"temperature": 1.1, "top_k": 9}]
    params = [SamplingParams(max_tokens=12, seed=i, **fields[i % 3]) for i in range(len(batch))]
    eager, graphs = llm_of(target, eager=True), llm_of(target)
    for _ in range(3):
        expected, found = eager.generate(batch, params), graphs.generate(batch, params)
        assert answers(found) == answers(expected)
        batch = [[*prompt, *result.token_ids, 7] for prompt, result in zip(batch, found, strict=True)]
    told = graphs.describe()["graphs"]["prefill"]
    assert told["captured"] > 2 and told["eager"] == [] and told["replays"] > len(batch)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_for_nothing_while_a_prefill_is_enqueued(kind: str) -> None:
    """torch raises on any synchronisation; only a capture may wait."""
    runner = runner_of(llm_of(target_of(torch.float32)), torch.float32)
    plans = [plan_of((0,), [ids(num)], 0, kind, fills=True) for num in PROMPTS]

    def enqueue(plan: PrefillPlan) -> None:
        ticket = runner.enqueue(plan)
        torch.cuda.set_sync_debug_mode("default")
        ticket.read()

    for plan in plans:
        enqueue(plan)
    captured = runner.describe()["prefill"]["captured"]
    try:
        for plan in plans:
            torch.cuda.set_sync_debug_mode("error")
            enqueue(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    told = runner.describe()["prefill"]
    assert told["captured"] == captured == 3 and told["replays"] == 2 * len(plans)


def test_one_that_cannot_be_captured_runs_eagerly_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sampled prefills ask the host something; greedy ones stay graphs, before and after, and so do cycles."""
    target = target_of(torch.float32)
    batch = [list(ids(num)) for num in (5, 20)]
    kinds = [SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, temperature=0.9, seed=1)]
    expected = [answers(llm_of(target, eager=True).generate(batch, params)) for params in kinds]

    def curious(pair: Pair, state: Any, shape: PrefillShape, inputs: Any) -> Chosen:
        chosen = run_prefill(pair, state, shape, inputs)
        if shape.needs.kind is SamplingKind.SAMPLED:
            chosen.outcome_BC.sum().item()
        return chosen

    monkeypatch.setattr(module, "run_prefill", curious)
    llm = llm_of(target, prefix_reuse=False)
    for index in (0, 1, 0, 1):
        assert answers(llm.generate(batch, kinds[index])) == expected[index]
    told = llm.describe()["graphs"]
    assert told["eager"] == [] and told["captured"] > 0 and told["prefill"]["captured"] > 0
    assert {eager["sampling"] for eager in told["prefill"]["eager"]} == {"sampled"}
    assert all(eager["why"] for eager in told["prefill"]["eager"])
    assert told["prefill"]["eager_replays"] > 0
    assert "prefills of" in caplog.text and "run without a graph" in caplog.text


def test_common_ones_are_there_before_the_first_prompt() -> None:
    llm = llm_of(target_of(torch.float32), capture_s=600.0)
    told = llm.describe()["graphs"]
    assert told["at_start"]["prefill"] == {"captured": 10, "left_for_later": 0}
    assert told["prefill"]["captured"] == 10 and told["prefill"]["eager"] == []
    for num in PROMPTS:
        llm.generate([list(ids(num))], SamplingParams(max_tokens=2))
    assert llm.describe()["graphs"]["prefill"]["captured"] == 10
