"""A whole profile on tiny models: figures add up, what is watched writes the same, and a GPU's way is plumbed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
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
from outpace.cli import profile_page
from outpace.engine import calibrate
from outpace.engine.frames import Frames
from outpace.lab.limits.rates import Rates
from outpace.lab.profile import contenders, run
from outpace.lab.profile.clock import cycle_times, decode
from outpace.lab.profile.contenders import Seen
from outpace.lab.profile.kineto import NUM_TRACED
from outpace.lab.profile.record import ProfileRecord
from outpace.lab.profile.run import ENGINE, ProfileSettings
from outpace.lab.profile.spans import watched
from outpace.lab.profile.trace import take_apart
from outpace.lab.profile.ways import way
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
    found = way("eager", [own], [slow], on_cpu=True)
    assert found.part_ms("verify", "head") == pytest.approx(2.0)
    assert found.part_ms("verify", "attention") == pytest.approx(5.0)
    assert found.in_no_part_ms("verify") == pytest.approx(3.0)
    assert found.slowdown.median == pytest.approx(1.0), "and what watching cost is said beside them"
    assert found.timing is None


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


class Gpu:
    """An engine whose frames run on a CPU as they are, and traces that stand in; all that happens is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.llm = small(k=2)
        self.log: list[str] = []
        self.pieces: list[int | None] = []
        self.runner = runner = self.llm.engine.runner
        runner.frames = Frames(self.llm.engine._pair, runner.state, runner.page_size)
        self.llm.device = torch.device("cuda")
        self.marked = calibrate.Marked(
            cycles=[0.1, 0.101, 9.0], phases=[{"draft": 0.02, "verify": 0.07, "accept": 0.004}], gaps=[0.002, 0.004]
        )
        monkeypatch.setattr(contenders, "tracing", lambda **options: self._tracing())
        monkeypatch.setattr(contenders, "rows_of", self.rows_of)
        monkeypatch.setattr(contenders, "decode", self._decode)
        monkeypatch.setattr(calibrate, "time_cycles", lambda *cell: [0.1, 0.1, 5.0])
        monkeypatch.setattr(calibrate, "time_marked", lambda *cell: self.marked)

    def rows_of(self, trace: object) -> list[Any]:
        rows = Trace(early=0.5)
        for _ in range(3):
            rows.cycle(2)
            rows.run("a_kernel_of_tomorrow", 3.0)
        return rows.rows

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        self.log.append("trace")
        yield
        self.log.append("traced")

    def _decode(self, *args: Any, most: int | None = None) -> contenders.Window:
        window = decode(*args, most=most)
        self.log.append("decode")
        self.pieces.append(most)
        assert most is None or window.cycles <= most
        return window

    def profiled(self, **settings: int) -> ProfileRecord:
        return profiled(self.llm, **settings)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_ranks_on_gpus_are_profiled_as_the_graphs_that_they_run(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = SimpleNamespace(group=SimpleNamespace(size=2), describe=dict, check=lambda: None)
    monkeypatch.setattr(gpu.llm, "ranks", ranks)
    record = gpu.profiled(num_rounds=1)
    assert [way.how for way in record.ways] == ["graph"]
    assert record.why_one_way is not None and "ranks replay the same graphs" in record.why_one_way


def test_a_gpus_two_ways_are_plumbed(gpu: Gpu) -> None:
    record = gpu.profiled()
    graph, eager = record.ways
    assert (graph.how, eager.how) == ("graph", "eager") and record.why_one_way is None
    traced = take_apart(gpu.rows_of(None), 2)
    verify, gaps = (sum(t for (phase, _), t in traced.time.items() if phase == name) for name in ("verify", "gaps"))
    share = traced.time["verify", "head"] / verify
    assert graph.phases_ms == pytest.approx({"draft": 20, "verify": 70, "accept": 4})
    assert graph.part_ms("verify", "head") == pytest.approx(share * 70)
    assert graph.in_no_part_ms("verify") == pytest.approx(0.0, abs=1e-9), "a trace holds all of a phase"
    assert graph.gaps_ms == pytest.approx(3.0), "by events"
    assert eager.gaps_ms == pytest.approx(1e-3 * gaps), "of the trace"
    assert record.launch_ms is not None
    assert record.launch_ms["verify"] == pytest.approx(eager.phases_ms["verify"] - 70)
    assert record.unknown == {"a_kernel_of_tomorrow": pytest.approx(0.003)}
    assert any("belong to no known part" in note for note in record.notes)
    assert "cycles of k 2 could not be captured, and ran without a graph: no CUDA device" in record.notes
    assert gpu.runner.frames is not None, "graphs are back"


def test_a_device_that_the_host_cannot_stay_ahead_of_shows_its_gaps_in_the_trace(gpu: Gpu) -> None:
    gpu.marked = replace(gpu.marked, gaps=[])
    traced = take_apart(gpu.rows_of(None), 2)
    gaps = sum(time for (phase, _), time in traced.time.items() if phase == "gaps")
    assert gpu.profiled().served.gaps_ms == pytest.approx(1e-3 * gaps)


def test_what_events_cost_is_a_cycle_with_them_over_one_without(gpu: Gpu) -> None:
    graph, eager = gpu.profiled(num_rounds=6).ways
    assert eager.timing is None and graph.timing is not None
    assert (graph.timing.median, graph.timing.low, graph.timing.high) == pytest.approx((0.01,) * 3)
    assert not any("timing phases cost" in note for note in gpu.profiled(num_rounds=1).notes), "in too few rounds"
    gpu.marked = replace(gpu.marked, cycles=[0.1011])
    assert any("timing phases cost more than 1%" in note for note in gpu.profiled(num_rounds=6).notes)


def test_no_round_has_seen_a_profiler_and_little_is_traced(gpu: Gpu) -> None:
    gpu.profiled(num_rounds=3, max_tokens=60)
    begun, answers = gpu.log.index("trace"), len(PROMPTS)
    contenders_a_round = 3
    assert gpu.log[:begun] == ["decode"] * (1 + 3) * contenders_a_round * answers, "each warms up over all of them"
    assert gpu.log[begun:] == ["trace", "traced", "decode"] * 2 * answers
    assert gpu.pieces[:begun] == [None] * begun
    assert gpu.pieces[begun:] == [NUM_TRACED] * 2 * answers
    assert not gpu.llm.engine.scheduler.busy, "what was broken off is over"


def test_what_a_host_adds_is_no_gap_of_the_device_and_stays_unexplained(gpu: Gpu, clock: Ticking) -> None:
    """The client's clock and the device's events know nothing of each other."""
    before = gpu.profiled(num_rounds=1).served
    step, asleep_s = gpu.llm.engine.step, 0.5

    def slow() -> None:
        clock.now += asleep_s
        step()

    gpu.llm.engine.step = slow  # type: ignore[method-assign]
    after = gpu.profiled(num_rounds=1).served
    assert after.unexplained_ms - before.unexplained_ms == pytest.approx(1e3 * asleep_s, rel=0.01)
    assert (after.phases_ms, after.gaps_ms) == (before.phases_ms, before.gaps_ms)


def test_what_a_blind_profiler_does_not_show_is_missing_and_said(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may forbid it: everything else was measured by then."""
    monkeypatch.setattr(contenders, "rows_of", lambda trace: [])
    record = gpu.profiled()
    assert [way.parts for way in record.ways] == [(), ()]
    assert record.served.phases_ms["verify"] == pytest.approx(70) and record.served.gaps_ms == pytest.approx(3.0)
    (note,) = [note for note in record.notes if note.startswith("parts are missing")]
    assert "a trace of 0 kernels shows no whole cycle of 2 drafts" in note
    assert "in no part" not in "\n".join(profile_page.lines(record))


def test_what_is_quicker_than_memory_is_said_to_be(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("quicker than from memory" in note for note in gpu.profiled(num_rounds=1).notes)
    monkeypatch.setattr(run, "measure_rates", lambda device: Rates(copy_bytes_s=1e4, matrix_flops_s=1e12))
    (note,) = [note for note in gpu.profiled(num_rounds=1).notes if "quicker than from memory" in note]
    assert "head of verify" in note and "small operations" not in note


def test_what_is_going_on_is_told(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", Ticking(tick=10.0))
    told: list[str] = []
    settings = ProfileSettings(max_tokens=16, num_rounds=2)
    run.profile(gpu.llm, PROMPTS, settings, dict, told.append)
    names = ["plain decoding", "serving", "without graphs"]
    assert told == [
        *[f"warming up {name}" for name in names],
        *[f"round 1 of 2: {name}" for name in names],
        *[f"round 2 of 2, about 10 s left: {name}" for name in reversed(names)],
        "tracing 8 cycles of each answer (serving, watched)",
        "tracing 8 cycles of each answer (without graphs, watched)",
        "",
    ]


def test_a_chrome_trace_is_of_so_many_cycles_however_long_the_answer(tmp_path: Path) -> None:
    llm, sizes = small(), []
    for max_tokens in (60, 120):
        path = tmp_path / f"{max_tokens}.json"
        contenders.write_trace(llm, (PROMPTS[0], SamplingParams(max_tokens=max_tokens, ignore_eos=True)), path)
        events = json.loads(path.read_text())["traceEvents"]
        sizes.append(sum(event.get("name") == "aten::linear" for event in events))
    assert sizes[0] == sizes[1] > 0
    assert not llm.engine.scheduler.busy


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 2), ("num_rounds", 0)])
def test_settings_out_of_range(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        ProfileSettings(**{name: value})
