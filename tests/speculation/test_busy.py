"""A machine that is busy for a while: what was learnt then does not outlive it, on a simulated clock.

Cycles take a multiple of their time for 500 cycles, all of them, those that draft, or plain steps alone. Afterwards
control has to be back at the best k within a bounded time, whatever it has seen meanwhile, and all in all not to have
lost more than its budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from outpace.speculation.cost import CostTable
from outpace.speculation.plain_checks import PlainChecks
from speculation.test_control import KS, Machine, Row, truth

CONTEXT = 512
BEGINS, ENDS, LAST = 500, 1000, 4000
BACK = 2000
"""Cycles after which it is back at the latest; most cases take less than a hundred."""

Slow = Callable[[int, int], float]


EVERYTHING, DRAFTS, PLAIN = KS, KS[1:], KS[:1]


def busy(begins: int, ends: int, times: float, ks: tuple[int, ...]) -> Slow:
    return lambda k, cycle: times if begins <= cycle < ends and k in ks else 1.0


@dataclass
class Cycle:
    """One that ran, by what it brings on average, and what the best k and plain decoding would have brought."""

    seconds: float
    tokens: float
    best: float
    """Tokens a second."""
    plain: float


def cycles(num_rows: int, rate: float, slow: Slow) -> list[Cycle]:
    """Of rows that never end, behind a context that stays."""
    machine = Machine(num_rows, CONTEXT, lambda row, at: rate, slow=slow)
    rows = [Row(max(KS), CONTEXT, machine.control.start()) for _ in range(num_rows)]
    brings = {k: sum(rate**place for place in range(k + 1)) for k in KS}
    found = []
    for cycle in range(1, LAST + 1):
        before = machine.clock
        machine._cycle(rows, None)
        for row in rows:
            row.num_cached = CONTEXT
        speeds = {k: brings[k] / truth(num_rows, k, num_rows * CONTEXT) / slow(k, cycle) for k in KS}
        found.append(Cycle(machine.clock - before, brings[machine.ks[-1]], max(speeds.values()), speeds[0]))
    return found


def part_of_best(part: list[Cycle]) -> float:
    return sum(cycle.tokens for cycle in part) / sum(cycle.best * cycle.seconds for cycle in part)


def against_plain(part: list[Cycle]) -> float:
    return sum(cycle.tokens for cycle in part) / sum(cycle.plain * cycle.seconds for cycle in part)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("num_rows", [1, 16])
@pytest.mark.parametrize(
    ("times", "ks"), [(3.0, EVERYTHING), (3.0, DRAFTS), (3.0, PLAIN), (10.0, EVERYTHING), (10.0, DRAFTS)]
)
def test_it_is_back_at_the_best_k_and_has_lost_no_more_than_it_may(
    times: float, ks: tuple[int, ...], num_rows: int, rate: float
) -> None:
    found = cycles(num_rows, rate, busy(BEGINS, ENDS, times, ks))
    assert part_of_best(found[ENDS + BACK :]) > 0.95
    assert against_plain(found) > 0.97


@pytest.mark.parametrize("rate", [0.4, 0.8])
@pytest.mark.parametrize("num_rows", [1, 16])
def test_a_machine_that_is_busy_as_a_whole_changes_nothing(num_rows: int, rate: float) -> None:
    """Plain steps are looked at as soon as cycles take longer, before drafting is charged for it."""
    found = cycles(num_rows, rate, busy(BEGINS, ENDS, 3.0, EVERYTHING))
    assert part_of_best(found[BEGINS:ENDS]) > 0.93
    assert part_of_best(found[ENDS : ENDS + 300]) > 0.93


@pytest.mark.parametrize("every", [2, 3, 10])
@pytest.mark.parametrize("times", [5.0, 20.0])
@pytest.mark.parametrize("num_rows", [1, 16])
def test_what_disturbs_drafting_again_and_again_is_what_it_takes(num_rows: int, times: float, every: int) -> None:
    """Each is so far off that alone it would be nobody's: drafts that pay otherwise run in forwards without a graph."""
    found = cycles(num_rows, 0.5, lambda k, cycle: times if k and cycle % every == 0 else 1.0)
    assert against_plain(found) > 0.97


def test_two_long_pauses_at_the_start_do_not_put_drafting_off_for_long() -> None:
    """A first use of something may take a hundred steps, twice: of the second one twelve are charged."""
    found = cycles(1, 0.8, lambda k, cycle: 100.0 if k and cycle in (2, 5) else 1.0)
    assert part_of_best(found[600:]) > 0.95


def test_what_disturbs_the_first_cycle_behind_plain_steps_is_part_of_probing() -> None:
    machine = Machine(1, CONTEXT, lambda row, at: 0.0)
    machine.slow = lambda k, cycle: 5.0 if k and machine.ks[-2:-1] == [0] else 1.0
    rows = [Row(max(KS), CONTEXT, machine.control.start())]
    while len(machine.ks) < LAST:
        machine._cycle(rows, None)
        rows[0].num_cached = CONTEXT
    assert LAST * truth(1, 0, CONTEXT) / machine.clock > 0.97


@pytest.mark.parametrize("rate", [0.5, 0.8])
@pytest.mark.parametrize("num_rows", [1, 16])
def test_what_disturbs_the_whole_machine_is_no_reason_against_drafts_that_clearly_pay(
    num_rows: int, rate: float
) -> None:
    found = cycles(num_rows, rate, lambda k, cycle: 5.0 if cycle % 10 == 0 else 1.0)
    assert part_of_best(found) > 0.95


@pytest.mark.parametrize("rate", [0.4, 0.8])
def test_a_start_on_a_busy_machine_is_made_up_for(rate: float) -> None:
    found = cycles(1, rate, busy(0, 60, 3.0, EVERYTHING))
    assert part_of_best(found[400:]) > 0.95


@pytest.mark.parametrize("rate", [0.0, 0.4, 0.8])
def test_what_varies_much_all_the_time_is_no_change(rate: float) -> None:
    """Nothing is checked every few cycles where every tenth takes half as long again."""
    found = cycles(1, rate, lambda k, cycle: 1.5 if cycle * 7919 % 10 == 0 else 1.0)
    assert part_of_best(found) > 0.9 / 1.05


# the table


def table() -> CostTable:
    costs = CostTable((1,), (0, 2, 4))
    for k, seconds in ((0, 0.010), (2, 0.012), (4, 0.014)):
        costs.set(1, k, [(0, seconds)])
        for _ in range(50):
            costs.observe(1, k, 0, seconds)
    return costs


@pytest.mark.parametrize("times", [1.5, 3.0, 1 / 1.5])
def test_four_that_are_off_to_one_side_are_believed_at_once(times: float) -> None:
    costs = table()
    told = [costs.observe(1, 4, 0, 0.014 * times) for _ in range(4)]
    assert told == ["off"] * 3 + ["shifted"]
    assert costs.seconds(1, 4, 0) == pytest.approx(max(0.010, 0.014 * times))
    assert costs.seconds(1, 2, 0) == pytest.approx(0.012)


def test_some_that_are_off_between_others_are_noise() -> None:
    costs = table()
    for seconds in (0.021, 0.021, 0.014) * 30:
        assert costs.observe(1, 4, 0, seconds) in ("usual", "off")


def test_what_looked_dear_long_ago_is_given_its_proportion_again() -> None:
    costs = table()
    for _ in range(4):
        costs.observe(1, 4, 0, 0.042)
    for _ in range(599):
        costs.observe(1, 2, 0, 0.012)
    assert costs.seconds(1, 4, 0) == pytest.approx(0.042)
    costs.observe(1, 2, 0, 0.012)
    assert costs.seconds(1, 4, 0) == pytest.approx(0.014)


def test_what_looked_cheap_long_ago_stays_so_until_it_is_tried() -> None:
    costs = table()
    for _ in range(700):
        costs.observe(1, 2, 0, 0.024)
    assert costs.seconds(1, 4, 0) == pytest.approx(0.014)


def test_a_plain_step_that_takes_longer_than_a_cycle_is_a_contradiction() -> None:
    costs = table()
    assert not costs.contradicts(1, 4, 0)
    for _ in range(4):
        costs.observe(1, 0, 0, 0.030)
    assert costs.contradicts(1, 4, 0)


# checks of the plain step


def drafted(checks: PlainChecks, num: int, *, clear: bool = True) -> list[int]:
    """The cycles of so many at which a check was due; it is made then."""
    due = []
    for cycle in range(num):
        if checks.due(1, clear=clear):
            due.append(cycle)
            for _ in range(4):
                checks.seen(1, 0, shifted=False)
        checks.seen(1, 4, shifted=False)
    return due


def test_a_plain_step_is_checked_now_and_then_however_clear_it_looks() -> None:
    assert drafted(PlainChecks(), 1000, clear=False) == [0, 400, 800]
    assert drafted(PlainChecks(), 4000) == [1600, 3200]


def test_a_cycle_that_shifted_has_it_checked_at_once_but_not_all_the_time() -> None:
    checks = PlainChecks()
    drafted(checks, 300)
    checks.seen(1, 4, shifted=True)
    assert drafted(checks, 1000) == [0]
    checks.seen(1, 4, shifted=True)
    drafted(checks, 1)
    checks.seen(1, 4, shifted=True)
    assert drafted(checks, 300) == [98]


def test_a_check_that_finds_another_time_is_checked_once_more() -> None:
    checks = PlainChecks()
    drafted(checks, 300)
    checks.seen(1, 4, shifted=True)
    for step in range(4):
        assert checks.due(1, clear=True)
        checks.seen(1, 0, shifted=step == 3)
    assert drafted(checks, 500) == [100]
