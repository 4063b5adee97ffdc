"""Calibration: rows lie on pages of their own, everything is put back, and time goes to the commonest batches first."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from engine.test_lookahead import ahead
from engine.test_lossless import answers, prompts
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine import calibrate
from outpace.engine.calibrate import Survey, time_cycles, time_marked, time_phases
from outpace.speculation.cost import CostTable
from outpace.types import CyclePlan, Outcome

SURVEY = Survey(buckets=(1, 8, 64), ks=(0, 1, 4), context=64, long=4096, count=2, budget_s=6.0)


def small(num_pages: int = 400, num_ahead: int = 0) -> LLM:
    target = tiny_target(seed=100)
    llm = engine(target, tiny_drafter(target), num_pages=num_pages, max_rows=4)
    return ahead(llm, num_ahead) if num_ahead else llm


@pytest.mark.parametrize("num_ahead", [0, 1])
@pytest.mark.parametrize(("k", "context", "count"), [(0, 40, 3), (4, 40, 3), (4, 117, 9), (4, 128, 2), (2, 0, 80)])
def test_cycles_are_timed_and_everything_is_put_back(num_ahead: int, k: int, context: int, count: int) -> None:
    llm = small(num_ahead=num_ahead)
    runner, state = llm.engine.runner, llm.engine.runner.state
    enqueue = runner.enqueue
    lengths: list[int] = []

    def watched(plan: CyclePlan) -> object:
        used = state.page_table_RP[:3, : -(-min(plan.bound, 128) // 4)]
        assert used.min() > 0, "the trash page"
        assert len(used.unique()) == used.numel()
        assert not state.max_k_R[:3].any(), "an accepted draft would make a cycle bring more than it costs here"
        lengths.extend(state.length_R[:3].tolist())
        return enqueue(plan)

    runner.enqueue = watched  # type: ignore[assignment,method-assign]
    before = {name: getattr(state, name).clone() for name in ("length_R", "page_table_RP", "num_pending_R", "first_R")}
    state.max_k_R[:3] = 4  # of requests that were there before
    times = time_cycles(runner, 3, k, context, count)
    runner.enqueue = enqueue  # type: ignore[method-assign]
    assert len(times) == count and min(times) > 0
    assert lengths[0] == context and max(lengths) <= max(context + 2, min(128 - k - 1, context + calibrate.DRIFT + 1))
    for name, tensor in before.items():
        assert torch.equal(getattr(state, name), tensor), name
    batch = prompts(3, seed=101)
    params = SamplingParams(max_tokens=20)
    assert answers(llm.generate(batch, params)) == answers(engine(llm.target).generate(batch, params))


def test_too_few_pages_are_used_again_but_never_the_trash_page() -> None:
    llm = small(num_pages=34)
    runner, state = llm.engine.runner, llm.engine.runner.state
    enqueue = runner.enqueue
    used: set[int] = set()

    def watched(plan: CyclePlan) -> object:
        used.update(state.page_table_RP[:4, : -(-plan.bound // 4)].flatten().tolist())
        return enqueue(plan)

    runner.enqueue = watched  # type: ignore[assignment,method-assign]
    assert len(time_cycles(runner, 4, 2, 50, 2)) == 2
    assert used == set(range(1, 34))


def test_where_the_device_stood_idle_the_hosts_clock_counts() -> None:
    runner = small().engine.runner
    enqueue = runner.enqueue
    runner.enqueue = lambda plan: _Idle(enqueue(plan))  # type: ignore[assignment,method-assign,return-value]
    assert all(seconds > 0.0 for seconds in time_cycles(runner, 1, 2, 8, 3))


class _Idle:
    def __init__(self, ticket: object) -> None:
        self.read = ticket.read  # type: ignore[attr-defined]

    def seconds(self) -> None:
        return None


def test_phases_are_those_of_one_cycle_at_a_time() -> None:
    runner = small().engine.runner
    log: list[str] = []

    @contextmanager
    def with_phases():  # type: ignore[no-untyped-def]
        log.append("on")
        yield
        log.append("off")

    def enqueue(plan: CyclePlan) -> SimpleNamespace:
        log.append("enqueue")
        number = float(log.count("enqueue"))
        return SimpleNamespace(
            read=lambda: log.append("read") or Outcome(((1,),)),
            phases=lambda: {"draft": number, "verify": 1.0},
            seconds=lambda: None,
        )

    runner.with_phases, runner.enqueue = with_phases, enqueue  # type: ignore[assignment,attr-defined,method-assign]
    assert time_phases(runner, 2, 4, 30, 2) == [{"draft": 2.0, "verify": 1.0}, {"draft": 3.0, "verify": 1.0}]
    assert log == ["on", *["enqueue", "read"] * 3, "off"]
    assert not runner.state.page_table_RP.any() and not runner.state.length_R.any()


def test_marks_are_read_of_a_cycle_behind_another_and_before_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay records a graph's marks anew: what is read must be the last one's, and that one must not stand first."""
    runner = small(num_ahead=1).engine.runner
    log: list[str] = []
    waited = [None, 7.0, 9.0]  # the device stood idle before the first of them

    def enqueue(plan: CyclePlan) -> SimpleNamespace:
        number = log.count("enqueue")
        log.append("enqueue")

        def read(what: str, found: object) -> object:
            log.append(f"{what} {number}")
            return found

        return SimpleNamespace(
            read=lambda: read("read", Outcome(((1,),))),
            seconds=lambda: waited[number // 2],
            phases=lambda: read("phases", {"draft": 2.0, "verify": 4.0 + number}),
        )

    monkeypatch.setattr(runner, "enqueue", enqueue)
    series = iter(([5.0] * 3, [6.0] * 3))  # the first captures a graph, and is not like the rest
    monkeypatch.setattr(calibrate, "time_cycles", lambda *cell: next(series))
    found = time_marked(runner, 2, 4, 30, 3)
    assert log == [
        entry
        for last in (1, 3, 5)
        for entry in ("enqueue", "enqueue", f"read {last - 1}", f"read {last}", f"phases {last}")
    ]
    assert found.phases == [{"draft": 2.0, "verify": 4.0 + last} for last in (1, 3, 5)]
    assert found.gaps == [7.0 - 9.0, 9.0 - 11.0] and found.cycles == [6.0] * 3
    assert not runner.state.page_table_RP.any() and not runner.state.length_R.any()


def test_marked_cycles_take_their_phases_and_a_gap() -> None:
    for num_ahead in (0, 1):
        found = time_marked(small(num_ahead=num_ahead).engine.runner, 2, 3, 20, 4)
        assert len(found.cycles) == len(found.phases) == len(found.gaps) == 4
        assert all(phases.keys() == {"draft", "verify", "accept"} for phases in found.phases)
        assert min(found.gaps) >= 0.0 < min(min(phases.values()) for phases in found.phases)


def runner_with(num_pages: int, max_context: int = 8192) -> SimpleNamespace:
    state = SimpleNamespace(page_table_RP=torch.zeros(65, max_context // 16), boundary_PH=torch.zeros(num_pages, 0))
    return SimpleNamespace(state=state, page_size=16, num_ahead=1, frames=object(), buckets=(1, 2, 4, 8, 16, 32, 64))


def survey_with(
    monkeypatch: pytest.MonkeyPatch, runner: SimpleNamespace, seconds_a_cell: float = 0.01, survey: Survey = SURVEY
) -> tuple[dict[str, object], CostTable]:
    """Calibrates against cycles that take 4 ms, 0.2 ms a draft, 10 µs a row and 1 µs a token of context."""
    clock = [0.0]

    def cycles(runner: object, num_rows: int, k: int, context: int, count: int) -> list[float]:
        clock[0] += seconds_a_cell
        return [4e-3 + 2e-4 * k + 1e-5 * num_rows + 1e-6 * num_rows * context] * count

    monkeypatch.setattr(calibrate, "time_cycles", cycles)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: clock[0])
    costs = CostTable(runner.buckets, (0, 1, 2, 3, 4))
    return calibrate.calibrate(runner, costs, survey), costs  # type: ignore[arg-type]


def test_slopes_and_larger_batches_are_measured_and_the_rest_is_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    found, costs = survey_with(monkeypatch, runner_with(100_000))
    assert found["seconds"] == pytest.approx(0.18) and found["rows_left_out"] == []
    assert [(m["rows"], m["k"], m["context"]) for m in found["measured"]][:6] == [  # type: ignore[attr-defined]
        *[(1, 0, 64), (1, 0, 4096), (1, 1, 64), (1, 1, 4096), (1, 4, 64), (1, 4, 4096)]
    ]
    for rows, k, context in [(1, 3, 9000), (8, 2, 16), (16, 4, 70_000), (32, 3, 0), (64, 0, 400_000)]:
        expected = 4e-3 + 2e-4 * k + 1e-5 * rows + 1e-6 * context
        assert costs.seconds(rows, k, context) == pytest.approx(expected, rel=1e-6), (rows, k, context)
    sources = {(e["bucket"], e["k"]): e["source"] for e in costs.as_dict()}
    assert sources[1, 4] == "measured" and sources[8, 2] == "interpolated" and sources[16, 4] == "interpolated"


def test_what_the_budget_does_not_reach_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found, costs = survey_with(monkeypatch, runner_with(100_000), seconds_a_cell=0.7)
    assert found["rows_left_out"] == [64]
    assert {m["rows"] for m in found["measured"]} == {1, 8}  # type: ignore[attr-defined]
    assert costs.seconds(64, 4, 0) == pytest.approx(costs.seconds(8, 4, 0))
    found, _ = survey_with(monkeypatch, runner_with(100_000), seconds_a_cell=0.7, survey=replace(SURVEY, budget_s=0.1))
    assert {m["rows"] for m in found["measured"]} == {1}, "one row is always timed"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("num_pages", "max_context", "contexts"),
    [(100_000, 8192, {1: 4096, 64: 4096}), (4097, 8192, {1: 4096, 64: 954}), (65, 1024, {1: 954, 64: None})],
)
def test_contexts_fit_the_pages_and_the_context(
    num_pages: int, max_context: int, contexts: dict[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = survey_with(monkeypatch, runner_with(num_pages, max_context))
    for rows, longest in contexts.items():
        timed = {m["context"] for m in found["measured"] if m["rows"] == rows}  # type: ignore[attr-defined]
        assert timed == {64, longest} - {None}


def test_a_cpu_times_one_row_over_a_short_context() -> None:
    target = tiny_target(seed=102)
    shown = engine(target, tiny_drafter(target), control="auto").describe()["control"]["calibration"]
    assert {(m["rows"], m["k"]) for m in shown["measured"]} == {(1, 0), (1, 1), (1, 4)}
    assert len({m["context"] for m in shown["measured"]}) == 1 and shown["cycles_each"] == 3
