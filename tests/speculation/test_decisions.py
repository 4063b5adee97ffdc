"""Single decisions of control, on costs and drafts given: its credit, its probes, its margin, its two kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from outpace.speculation.acceptance import Acceptance, batch_tokens
from outpace.speculation.apart import ApartControl
from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.control import CycleSeen, Decision
from outpace.speculation.cost import CostTable


@dataclass
class Row:
    """A request as control sees it."""

    max_k: int = 4
    num_cached: int = 0
    acceptance: Acceptance | None = None
    masked: bool = False
    num_left: int = 1 << 30


def table(*steps: tuple[int, float], buckets: tuple[int, ...] = (1,)) -> CostTable:
    """Of one row, (k, plain steps that its cycle takes)."""
    costs = CostTable(buckets, [k for k, _ in steps])
    for k, seconds in steps:
        costs.set(1, k, [(0, seconds)])
    return costs


def drafting_pays() -> AutomaticControl:
    """Control that knows a drafter to be good, on a machine whose cycles of 4 drafts take 1.5 plain steps."""
    control = AutomaticControl(table((0, 1.0), (2, 1.25), (4, 1.5)))
    for _ in range(200):
        control.learn(Row(), 4, 4)
    return control


def seen(k: int, num_emitted: int, seconds: float) -> CycleSeen:
    return CycleSeen(num_rows=1, k=k, context=0, num_emitted=num_emitted, seconds=seconds)


def test_gains_that_are_saved_up_and_losses_that_are_owed_have_a_limit() -> None:
    """However long drafting paid, what it loses afterwards is bounded; and however much it lost, it is tried again."""
    control, rows = drafting_pays(), [Row()]
    for k in (*[4] * 3000, *[0] * 4):
        control.observe(seen(k, k + 1, 1.5 if k else 1.0))
    num_lost = 0
    while num_lost < 1000 and control.choose(rows).k:
        control.observe(seen(4, 1, 1.5))
        num_lost += 1
    assert num_lost == pytest.approx((24.0 + 2 * 1.0) / 0.5, abs=1), "half a plain step a cycle, and two catch-ups"
    assert "lost more than it may" in control.decision.why
    assert not control.fills_drafter(), "prompts are not made ready for drafts that may not come"
    for _ in range(3000):
        control.observe(seen(4, 1, 1.5))
    num_plain = 0
    while num_plain < 5000 and not control.choose(rows).k:
        control.observe(seen(0, 1, 1.0))
        num_plain += 1
    assert num_plain == pytest.approx(24.0 / 0.015, rel=0.02)
    assert control.fills_drafter()


@pytest.mark.parametrize(("better", "k"), [(1.01, 2), (1.04, 4)])
def test_another_k_is_taken_only_where_it_is_clearly_better(better: float, k: int) -> None:
    """What two k's bring is known to a few parts in a hundred: without a margin it would go to and fro."""
    control, rows = drafting_pays(), [Row()]
    control.costs.set(1, 4, [(0, 9.0)])
    assert control.choose(rows).k == 2
    tokens = batch_tokens([Acceptance(4, 24.0).seen_R], [4], control.overall.rates())
    control.costs.set(1, 4, [(0, 1.25 * tokens[4] / tokens[2] / better)])
    assert control.choose(rows).k == k


def test_a_catch_up_is_paid_from_the_credit_and_a_disturbed_one_as_the_dearest() -> None:
    control, rows = drafting_pays(), [Row()]
    for k in (*[4] * 3000, *[0] * 4):
        control.observe(seen(k, k + 1, 1.5 if k else 1.0))
    control.pay(1, 0, 1000.0)
    assert control.choose(rows).k == 4, "a paused machine is nobody's loss beyond 12 of the 24 steps"
    control.pay(1, 0, 11.0)
    assert control.choose(rows).k == 4
    control.pay(1, 0, 2.0)
    assert control.choose(rows).k == 0


def test_cycles_that_vary_to_and_fro_are_charged_all_the_same() -> None:
    """One by one each is far off, so that none says what such cycles take."""
    control, rows = drafting_pays(), [Row()]
    for cycle in range(400):
        control.observe(seen(4, 1, 3.5 if cycle % 2 else 0.9))
    assert control.choose(rows).k == 0
    assert "lost more than it may" in control.decision.why or "checking" in control.decision.why


def test_a_busy_machine_is_not_charged_to_drafting() -> None:
    """Four cycles take three times their time, and so do the plain steps behind them: two tokens each still pay."""
    control, rows = drafting_pays(), [Row()]
    for _ in range(4):
        control.observe(seen(4, 2, 4.5))
    assert control.choose(rows).k == 0 and "checking" in control.decision.why
    for _ in range(4):
        control.observe(seen(0, 1, 3.0))
    assert control.choose(rows).k > 0
    ks = []
    for _ in range(30):
        ks.append(control.choose(rows).k)
        control.observe(seen(ks[-1], 1 + ks[-1] // 2, 3.0 * (1.0 + ks[-1] / 8)))
    assert set(ks) <= {2, 4} and ks[-1] == 4


def drafting_is_useless(cycle: float) -> AutomaticControl:
    """Control that knows a drafter to be bad and has saved up all it may; cycles take so many plain steps."""
    control = AutomaticControl(table((0, 1.0), (4, cycle)))
    for _ in range(400):
        control.learn(Row(), 4, 0)
    for _ in range(3000):
        control.observe(seen(0, 1, 1.0))
    return control


def test_probes_are_a_few_cycles_with_many_plain_steps_between() -> None:
    control, rows = drafting_is_useless(1.2), [Row()]
    ks = []
    for _ in range(2 * (6 + 100)):
        ks.append(control.choose(rows).k)
        control.observe(seen(ks[-1], 1, 1.2 if ks[-1] else 1.0))
    assert ks == ([4] * 6 + [0] * 100) * 2


def test_probes_come_sooner_where_drafting_has_paid_and_ever_later_where_it_has_not() -> None:
    """It pays for as long as the first probe runs, and never again."""
    control, rows = drafting_is_useless(1.2), [Row()]
    waits, num_plain = [], 0
    while len(waits) < 14:
        k = control.choose(rows).k
        if k and num_plain:
            waits.append(num_plain)
        num_plain = 0 if k else num_plain + 1
        control.observe(seen(k, 5 if k and len(waits) == 1 else 1, 1.2 if k else 1.0))
    assert waits[:5] == [100, 25, 30, 36, 44]
    assert waits[-2:] == [100, 100]


@pytest.mark.parametrize(("catch_up", "needed"), [(2.0, 8.0), (10.0, 16.0)])
@pytest.mark.parametrize("cycle", [3.5, 40.0])
def test_a_probe_needs_credit_for_its_catch_up_as_those_before_it_were(
    catch_up: float, needed: float, cycle: float
) -> None:
    """And for 6 steps that it may lose. However dear it looks it comes: it may have been measured in a busy time."""
    control, rows = drafting_is_useless(cycle), [Row()]
    for _ in range(20):
        control.pay(1, 0, catch_up)
    owed = max(-24.0, 24.0 - 20 * catch_up)
    num_plain = 0
    while num_plain < 5000 and not control.choose(rows).k:
        control.observe(seen(0, 1, 1.0))
        num_plain += 1
    assert num_plain == pytest.approx((needed - owed) / 0.015, rel=0.02)


def test_a_probe_that_comes_to_owe_ends_and_what_it_owes_is_earned_first() -> None:
    """A cycle loses eight steps: the 24 that were saved up are gone with the fourth, and then it is one a probe."""
    control, rows = drafting_is_useless(9.0), [Row()]
    ks = []
    for _ in range(6000):
        ks.append(control.choose(rows).k)
        control.observe(seen(ks[-1], 1, 9.0 if ks[-1] else 1.0))
    assert ks[:5] == [4] * 4 + [0]
    lost = 8.0 * sum(k > 0 for k in ks)
    assert 24.0 < lost <= 24.0 + 0.015 * 6000 + 8.0


def test_a_batch_of_a_new_size_waits_for_a_plain_step_only_a_few_times() -> None:
    """While a catch-up is under way control is asked and no plain step comes."""
    control = AutomaticControl(table((0, 1.0), (4, 1.5), buckets=(1, 16)))
    rows = [Row()] * 16
    for _ in range(200):
        control.learn(rows[0], 4, 4)
    assert [control.choose(rows).k for _ in range(8)] == [0] * 4 + [4] * 4


def test_rows_that_do_not_draft_weigh_against_drafting() -> None:
    """Every cycle is as long for them, and brings them one token."""
    control = drafting_pays()
    assert control.choose([Row()]).k == 4
    assert control.choose([Row(), *[Row(max_k=0)] * 15]).k == 0


def test_drafts_behind_the_last_token_bring_nothing() -> None:
    control = drafting_pays()
    assert [control.choose([Row(num_left=left)]).k for left in (9, 5, 3)] == [4, 4, 2]
    kept = control.decision
    assert control.choose([Row(num_left=1)]).k == 0
    assert control.decision is kept, "an answer's last token says nothing about the next answer"
    assert control.choose([Row(num_left=1), Row(num_left=9)]).k == 4
    assert control.choose([Row(num_left=1), *[Row(num_left=2)] * 3]).k == 2


def test_batches_under_grammars_are_judged_by_what_was_seen_under_grammars() -> None:
    control, free, masked = ApartControl(table((0, 1.0), (4, 1.5))), Row(), Row(masked=True)
    for _ in range(200):
        control.learn(free, 4, 4)
        control.learn(masked, 4, 0)
    for row, k in ((free, 4), (masked, 0), (free, 4)):
        assert control.choose([row]).k == k
        assert control.describe()["k"] == k
    assert control.choose([free, masked]).k == 0, "one row under a grammar makes it such a batch"


def test_what_others_accept_beside_grammars_is_taken_in_at_once() -> None:
    """Some row of a busy server may be under a grammar for days: what is learnt of the others must not pile up."""
    control = ApartControl(table((0, 1.0), (4, 1.5)))
    free, masked = Row(acceptance=control.start()), Row(masked=True)
    for _ in range(20):
        control.learn(free, 4, 0)
        control.choose([free, masked])
    assert free.acceptance is not None and free.acceptance.seen_R[0] > 8.0
    assert control.overall.rates()[0] < 0.2


def test_cycles_under_grammars_cost_what_was_seen_under_grammars() -> None:
    control, free, masked = ApartControl(table((0, 1.0), (4, 1.5))), Row(), Row(masked=True)
    for row in (free, masked):
        for _ in range(200):
            control.learn(row, 4, 4)
    for _ in range(200):
        control.observe(seen(4, 5, 1.5))
        control.observe(replace(seen(4, 5, 5.9), masked=True))
    assert control.choose([free]).k == 4
    assert control.choose([masked]).k == 0


def test_each_kind_pays_for_its_own_catch_ups_and_says_whether_its_prompts_are_made_ready() -> None:
    control, free, masked = ApartControl(table((0, 1.0), (4, 1.5))), Row(), Row(masked=True)
    for row in (free, masked):
        for _ in range(200):
            control.learn(row, 4, 4)
    assert control.choose([masked]).k == 4
    for _ in range(3):
        control.pay(1, 0, 12.0)
    assert control.choose([masked]).k == 0 and not control.fills_drafter()
    assert control.choose([free]).k == 4 and control.fills_drafter()


def says(decision: Decision) -> tuple[int, float, float]:
    """The k that a reason speaks of and its two figures."""
    found = re.search(r"k (\d+) would emit ([\d.]+) tokens a cycle and breaks even at ([\d.]+)", decision.why)
    assert found is not None
    return int(found[1]), float(found[2]), float(found[3])


@pytest.mark.parametrize(
    ("pays", "kinds"),
    [
        (True, {"", "it has lost more than it may, though "}),
        (False, {"", "probing: "}),
    ],
)
def test_what_was_weighed_is_what_the_reason_says_whatever_was_decided(pays: bool, kinds: set[str]) -> None:
    """Drafting is believed to pay, or not to, and every cycle brings one token: the figures are always of one k."""
    control, rows, found = drafting_pays() if pays else drafting_is_useless(1.2), [Row()], set()
    for _ in range(300):
        decision = control.choose(rows)
        assert decision.weighed is not None
        weighed = decision.weighed
        assert says(decision) == pytest.approx((weighed.k, weighed.accept_length, weighed.break_even), abs=0.0051)
        found.add(decision.why[: decision.why.index(f"k {weighed.k} would")])
        control.observe(seen(decision.k, 1, 1.0 + decision.k / 8))
    assert found >= kinds


def test_cycles_that_cost_no_more_than_a_plain_step_are_told_to_pay_always() -> None:
    """The table has no cycle below the plain step that is part of it, so the break-even is 1."""
    decision = AutomaticControl(table((0, 1.0), (4, 0.95))).choose([Row()])
    assert decision.weighed is not None and decision.weighed.as_dict()["every_cycle_pays"] is True
    assert "breaks even at 1.00, so every cycle pays (1 row" in decision.why
    dear = AutomaticControl(table((0, 1.0), (4, 1.05))).choose([Row()])
    assert dear.weighed is not None and dear.weighed.as_dict()["every_cycle_pays"] is False
    assert "breaks even at 1.05 (1 row" in dear.why


def test_what_was_weighed_under_grammars_is_told_with_their_decision() -> None:
    control, masked = ApartControl(table((0, 1.0), (4, 1.5))), Row(masked=True)
    control.choose([Row()])
    decision = control.choose([masked])
    told = control.describe()
    assert decision.weighed is not None
    assert (told["why"], told["weighed"]) == (decision.why, decision.weighed.as_dict())
