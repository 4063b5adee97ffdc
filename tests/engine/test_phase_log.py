"""Where time goes: what is shown adds up to what went by."""

from __future__ import annotations

from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine.phase_log import PhaseLog
from outpace.types import CyclePlan, Needs, Plan, PrefillPlan


def plan(k: int, rows: int = 1) -> CyclePlan:
    return CyclePlan(rows=tuple(range(rows)), k=k, needs=Needs(), bound=64)


def prefill() -> Plan:
    return PrefillPlan(rows=(0,), chunks=((1,),), ends=(True,), fills_drafter=True, needs=Needs(), bound=64)


def test_phases_and_gap_are_the_time_from_one_cycle_to_the_next() -> None:
    log = PhaseLog()
    for i in range(4):
        log.enqueued(plan(2), i * 10.0)
        log.took(plan(2), {"draft": 2.0, "verify": 5.0, "accept": 1.0})
    (entry,) = log.describe()
    assert (entry["k"], entry["rows"], entry["cycles"]) == (2, 1, 4)
    assert (entry["draft_ms"], entry["verify_ms"], entry["accept_ms"], entry["gap_ms"]) == (2e3, 5e3, 1e3, 2e3)
    assert entry["cycle_ms"] == 10e3


def test_a_gap_belongs_to_the_cycle_before_it_and_prefill_is_nobodys() -> None:
    log = PhaseLog()
    for what, at in ((plan(0), 0.0), (plan(3), 5.0), (prefill(), 14.0), (plan(0), 30.0)):
        log.enqueued(what, at)
        if isinstance(what, CyclePlan):
            log.took(what, {"draft": 0.0, "verify": 4.0, "accept": 0.0})
    plain, drafted = log.describe()
    assert (plain["k"], plain["gap_ms"], plain["cycle_ms"]) == (0, 1e3, 5e3)
    assert (drafted["k"], drafted["gap_ms"], drafted["cycle_ms"]) == (3, None, None), "prefill came behind it"


def test_without_marks_whole_cycles_are_seen_among_equals() -> None:
    log = PhaseLog()
    for k, at in ((0, 0.0), (0, 4.0), (0, 8.0), (2, 30.0), (2, 37.0)):
        log.enqueued(plan(k), at)
    assert [(e["k"], e["cycle_ms"], e["verify_ms"], e["gap_ms"]) for e in log.describe()] == [
        (0, 4e3, None, None),
        (2, 7e3, None, None),
    ]


def test_other_rows_begin_anew_and_the_past_fades() -> None:
    log = PhaseLog()
    for seconds in (*[1.0] * 50, *[3.0] * 200):
        log.took(plan(1), {"verify": seconds})
    assert abs(log.describe()[0]["verify_ms"] - 3e3) < 1.0
    log.took(plan(1, rows=2), {"verify": 9.0})
    (entry,) = log.describe()
    assert (entry["rows"], entry["verify_ms"]) == (2, 9e3)


def test_an_engine_on_a_cpu_takes_every_cycle_apart() -> None:
    target = tiny_target()
    llm = engine(target, tiny_drafter(target), control="fixed")
    result = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=20, ignore_eos=True))[0]
    (entry,) = llm.engine.phases.describe()
    assert entry["k"] == 4 and entry["cycles"] == result.stats.cycles
    assert min(entry[f"{name}_ms"] for name in ("draft", "verify", "accept")) > 0
    assert entry["gap_ms"] >= 0 and entry["cycle_ms"] > entry["verify_ms"]
