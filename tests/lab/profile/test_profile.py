"""A whole profile on tiny models: figures add up, what is watched writes the same, and a GPU's way is plumbed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from distributed.test_ranks import checkpoints
from engine.tiny import engine, tiny_drafter, tiny_target
from lab.ticking import Ticking, ticking
from lab.traces import Trace
from outpace import LLM, ConfigError, EngineError, SamplingParams
from outpace.engine.frames import Frames
from outpace.lab.limits.rates import Rates
from outpace.lab.profile import contenders, run
from outpace.lab.profile.clock import cycle_times, decode
from outpace.lab.profile.contenders import Seen
from outpace.lab.profile.record import ProfileRecord
from outpace.lab.profile.run import ENGINE, ProfileSettings
from outpace.lab.profile.spans import watched
from outpace.lab.profile.trace import take_apart
from outpace.lab.written import to_json
from outpace.models.arch import MixtureConfig

RATES = Rates(copy_bytes_s=1e9, matrix_flops_s=1e12)
PROMPTS = [[1, 2, 3, 4], [5, 6, 7]]
MIXTURE = MixtureConfig(num_experts=8, num_chosen=2, intermediate_size=24, normalizes=True, layers=(True, False, True))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    return ticking(monkeypatch)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "measure_rates", lambda device: RATES)


def small(k: int = 2, **changes: Any) -> LLM:
    target = tiny_target(**changes)
    return engine(target, tiny_drafter(target) if k else None, **(ENGINE | {"k": k}))


def profiled(llm: LLM, **settings: int) -> ProfileRecord:
    given = ProfileSettings(**({"max_tokens": 24, "num_rounds": 2} | settings))
    return run.profile(llm, PROMPTS, given, lambda: {"cpu": "here"})


def test_the_figures_add_up() -> None:
    record = profiled(small())
    (way,) = record.ways
    assert way.speed.tok_s == pytest.approx(1e3 * way.accept_length / way.cycle_ms)
    assert way.cycle_ms == pytest.approx(sum(way.phases_ms.values()) + way.gaps_ms + way.unexplained_ms)
    assert way.phases_ms.keys() == {"draft", "verify", "accept"} and way.gaps_ms > 0
    for phase in ("draft", "verify"):
        inside = sum(part.ms for part in way.parts if part.phase == phase)
        assert inside + (way.in_no_part_ms(phase) or 0.0) == pytest.approx(way.phases_ms[phase])
    calls = {(part.phase, part.name): part.count for part in way.parts}
    assert (way.in_no_part_ms("draft") or 0.0) > 0 < (way.in_no_part_ms("verify") or 0.0)
    assert calls["verify", "attention"] == 3 and calls["verify", "linear layers"] == 9 and calls["verify", "norms"] == 7
    assert calls["draft", "attention"] == 2 and calls["draft", "head"] == 2 and calls["verify", "fusion"] == 1
    assert record.plain is not None and record.plain.tokens == record.plain.cycles
    assert record.break_even is not None and record.speedup is not None
    slowest, fastest = (way.accept_length / speed for speed in (way.speed.low, way.speed.high))
    assert fastest * record.plain.low <= record.break_even <= slowest * record.plain.high
    assert record.why_one_way is not None and "no graphs" in record.why_one_way and record.launch_ms is None
    assert msgspec.json.decode(to_json(record), type=ProfileRecord).served.parts == way.parts


def test_what_is_slow_shows_where_it_is(clock: Ticking) -> None:
    """An oracle from outside: a head and an MLP that take a known time, and nothing else that takes any."""
    clock.tick = 1e-6
    llm = small()
    model: Any = llm.target.model
    slow = contextlib.ExitStack()
    for module, seconds in ((model.lm_head, 0.04), (model.layers[1].mlp, 0.06)):
        slow.enter_context(slowed(module, seconds, clock))
    with slow:
        (way,) = profiled(llm, num_rounds=1).ways
    head, linear = (way.part_ms("verify", name) for name in ("head", "linear layers"))
    assert head == pytest.approx(40, rel=0.01) and linear == pytest.approx(60, rel=0.01)
    assert way.phases_ms["verify"] == pytest.approx(100, rel=0.01)


@contextlib.contextmanager
def slowed(module: Any, seconds: float, clock: Ticking) -> Any:
    kind = type(module)

    class Slow(kind):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any) -> Any:
            clock.now += seconds
            return kind.__call__(self, *args)

    module.__class__ = Slow
    yield
    module.__class__ = kind


def test_parts_are_shares_of_the_watched_run_however_slow_that_was() -> None:
    window = contenders.Window(
        tokens=20, cycles=10, seconds=0.1, cpu_s=0.1, began=0.0, context=9.0, accepted_at=(), drafted_at=()
    )
    own = Seen(windows=(window,), phases={"verify": 0.010}, gaps=0.0)
    slow = Seen(
        windows=(replace(window, seconds=0.2, cpu_s=0.2),),
        phases={"verify": 0.020},
        time={("verify", "head"): 0.004, ("verify", "attention"): 0.010},
    )
    way = run._way("eager", [own], [slow], on_cpu=True)
    assert way.part_ms("verify", "head") == pytest.approx(2.0)
    assert way.part_ms("verify", "attention") == pytest.approx(5.0)
    assert way.in_no_part_ms("verify") == pytest.approx(3.0)
    assert way.slowdown.median == pytest.approx(1.0), "and what watching cost is said beside them"


def test_without_a_drafter_a_cycle_is_a_plain_step() -> None:
    record = profiled(small(k=0))
    assert record.plain is None and record.break_even is None and record.acceptance_at == record.judged_at == ()
    assert record.served.accept_length == 1.0
    assert not [part for part in record.served.parts if part.phase == "draft"]


@pytest.mark.parametrize("changes", [{}, {"mixture": MIXTURE}, {"qk_norm": True}])
def test_what_is_watched_writes_the_same_and_nothing_is_left_in_the_model(changes: dict[str, Any]) -> None:
    llm = small(**changes)
    params = SamplingParams(max_tokens=20)
    before = llm.generate(PROMPTS[0], params)[0].token_ids
    with watched(llm) as rows:
        assert llm.generate(PROMPTS[0], params)[0].token_ids == before
    seen = len(rows)
    assert seen > 0 and ("verify/experts" in {name for name, _, _ in rows}) == bool(changes.get("mixture"))
    assert llm.generate(PROMPTS[0], params)[0].token_ids == before
    assert len(rows) == seen, "the model's own layers note nothing"


def test_of_several_ranks_the_first_is_watched_and_shows_its_collectives(tmp_path: Path) -> None:
    target, drafter = checkpoints(tmp_path, "llama")
    options = {"dtype": "float32", "device": "cpu", "num_pages": 100, "k": 2, "tensor_parallel": 2}
    with LLM(target, drafter=drafter, **options, **ENGINE) as llm:
        record = profiled(llm, num_rounds=1)
        layers = llm.target.config.num_layers
    (way,) = record.ways
    calls = {(part.phase, part.name): part.count for part in way.parts}
    assert calls["verify", "all-reduce"] == 2 * layers + 1, "two a layer, and the head"
    assert calls["draft", "all-reduce"] == 2 * 3
    assert record.plain is not None and record.plain.tokens == record.plain.cycles
    assert record.why_no_limits is not None and "cut over 2 ranks" in record.why_no_limits
    assert any("parts are those of rank 0" in note for note in record.notes)


def test_cycles_of_the_window_and_their_gaps_are_the_clocks() -> None:
    llm = small()
    with cycle_times(llm) as times:
        window = decode(llm, PROMPTS[0], SamplingParams(max_tokens=40), contextlib.nullcontext())
    phases, gap = times.since(window.began)
    assert sum(cycle.at >= window.began for cycle in times.found) == window.cycles
    assert (sum(phases.values()) + gap) * window.cycles == pytest.approx(window.seconds, rel=0.1)
    with pytest.raises(EngineError, match="before anything was timed"):
        decode(llm, PROMPTS[0], SamplingParams(max_tokens=2), contextlib.nullcontext())


def test_what_lies_between_two_answers_is_no_gap() -> None:
    llm = small()
    with cycle_times(llm) as times:
        with pytest.raises(EngineError, match="too short to time a cycle"):
            times.since()
        for _ in range(2):
            llm.generate(PROMPTS[0], SamplingParams(max_tokens=20))
    assert set(times.since()[0]) == {"draft", "verify", "accept"}
    assert [cycle.follows for cycle in times.found].count(False) == 2, "the first of each answer"
    at = 0.0
    for cycle in times.found:  # a second from one to the next, an hour between the answers
        at += 1.0 if cycle.follows else 3600.0
        cycle.at, cycle.phases = at, {"draft": 0.1, "verify": 0.5, "accept": 0.1}
    assert times.since()[1] == pytest.approx(0.3)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Frames run on a CPU as they are; the trace stands in."""
    llm = small(k=2)
    runner = llm.engine.runner
    runner.frames = Frames(llm.engine._pair, runner.state, runner.page_size)
    llm.device = torch.device("cuda")

    def rows_of(tracing: object) -> list[Any]:
        trace = Trace(early=0.5)
        for _ in range(3):
            trace.cycle(2, between=7.0 if runner.frames is not None else 11.0)
            trace.run("a_kernel_of_tomorrow", 3.0)
        return trace.rows

    monkeypatch.setattr(contenders, "profile", lambda **options: contextlib.nullcontext())
    monkeypatch.setattr(contenders, "rows_of", rows_of)
    return llm


def test_ranks_on_gpus_are_profiled_as_the_graphs_that_they_run(on_gpu: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = SimpleNamespace(group=SimpleNamespace(size=2), describe=dict, check=lambda: None)
    monkeypatch.setattr(on_gpu, "ranks", ranks)
    record = profiled(on_gpu, num_rounds=1)
    assert [way.how for way in record.ways] == ["graph"]
    assert record.why_one_way is not None and "ranks replay the same graphs" in record.why_one_way


def test_a_gpus_two_ways_are_plumbed(on_gpu: LLM) -> None:
    runner, rows_of = on_gpu.engine.runner, contenders.rows_of
    record = profiled(on_gpu)
    graph, eager = record.ways
    assert (graph.how, eager.how) == ("graph", "eager") and record.why_one_way is None
    traced = take_apart(rows_of(None), 2)
    verify, gaps = (sum(t for (phase, _), t in traced.time.items() if phase == name) for name in ("verify", "gaps"))
    share = traced.time["verify", "head"] / verify
    assert graph.part_ms("verify", "head") == pytest.approx(share * graph.phases_ms["verify"])
    assert graph.in_no_part_ms("verify") == pytest.approx(0.0, abs=1e-9), "a trace holds all of a phase"
    assert graph.gaps_ms == pytest.approx(1e-3 * gaps), "and that between cycles, which events do not"
    assert record.launch_ms is not None
    assert record.launch_ms["verify"] == pytest.approx(eager.phases_ms["verify"] - graph.phases_ms["verify"])
    assert record.unknown == {"a_kernel_of_tomorrow": pytest.approx(0.003)}
    assert any("belong to no known part" in note for note in record.notes)
    assert "cycles of k 2 could not be captured, and ran without a graph: no CUDA device" in record.notes
    assert runner.frames is not None, "graphs are back"


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 2), ("num_rounds", 0)])
def test_settings_out_of_range(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        ProfileSettings(**{name: value})
