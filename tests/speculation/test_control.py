"""Control on a simulated clock: never slower than plain decoding, and close to the best k there is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from outpace.speculation.acceptance import Acceptance, expected_tokens
from outpace.speculation.control import AutomaticControl, CycleSeen
from outpace.speculation.cost import CostTable

KS = (0, 1, 2, 3, 5, 7)
BUCKETS = (1, 4, 16, 64)
NUM_TOKENS = {1: 1500, 4: 800, 16: 500, 64: 300}
"""Tokens a row: fewer rows need longer runs before luck evens out."""
CATCH_UP = 2.5
"""Plain steps that a catch-up takes."""

Rates = Callable[[int, int], float]
"""(row, tokens it has written) → chance that a draft is accepted."""


@dataclass
class Row:
    max_k: int
    num_cached: int
    acceptance: Acceptance | None
    num_new: int = 0
    lags: bool = False


def truth(num_rows: int, k: int, context: int) -> float:
    """Seconds of a cycle: weights once, K/V once, arithmetic by the token, drafts one after another."""
    weights, drafts = 3.8e-3, 0.22e-3 * k
    arithmetic = 16e9 * num_rows * (k + 1) / 7.0e14
    return max(weights, arithmetic) + 0.13e-3 + context * 131e3 / 4.3e12 + drafts + (0.1e-3 if k else 0.0)


@dataclass
class Machine:
    """Runs cycles of a batch under a control, on its own clock."""

    num_rows: int
    context: int
    rates: Rates
    table_error: float = 0.0
    seed: int = 0
    clock: float = 0.0
    ks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.costs = CostTable(BUCKETS, KS)
        for k in KS:
            error = 1.0 + self.table_error * self.random.uniform(-1.0, 1.0)
            points = [(c, truth(self.num_rows, k, c) * error) for c in (64 * self.num_rows, 8192 * self.num_rows)]
            self.costs.set(self.num_rows, k, points)
        self.control = AutomaticControl(self.costs)

    def run(self, num_tokens: int, fixed: int | None = None) -> float:
        """Seconds until the rows have written so many tokens each, on average."""
        rows = [Row(max(KS), self.context, self.control.start()) for _ in range(self.num_rows)]
        while sum(row.num_new for row in rows) < num_tokens * self.num_rows:
            self._cycle(rows, fixed)
        return self.clock

    def _cycle(self, rows: list[Row], fixed: int | None) -> None:
        k = self.control.choose(rows).k if fixed is None else fixed
        self.ks.append(k)
        total = sum(row.num_cached for row in rows)
        if k and any(row.lags for row in rows):
            spent = CATCH_UP * truth(self.num_rows, 0, total)
            self.clock += spent
            self.control.pay(self.num_rows, total, spent)
        seconds = truth(self.num_rows, k, total) * self.random.gauss(1.0, 0.02)
        self.clock += seconds
        num_emitted = 0
        for index, row in enumerate(rows):
            row.lags = k == 0
            num_accepted = 0
            while num_accepted < k and self.random.random() < self.rates(index, row.num_new):
                num_accepted += 1
            if k:
                self.control.learn(row, k, num_accepted)
            row.num_cached += num_accepted + 1
            row.num_new += num_accepted + 1
            num_emitted += num_accepted + 1
        seen = CycleSeen(num_rows=self.num_rows, k=k, context=total, num_emitted=num_emitted, seconds=seconds)
        self.control.observe(seen)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("num_rows", BUCKETS)
@pytest.mark.parametrize(("context", "table_error"), [(512, 0.03), (8192, 0.0)])
def test_never_slower_and_close_to_the_best(rate: float, num_rows: int, context: int, table_error: float) -> None:
    def run(fixed: int | None = None, seed: int = 0) -> float:
        return Machine(num_rows, context, lambda row, at: rate, table_error, seed).run(NUM_TOKENS[num_rows], fixed)

    found = sorted(run(seed=seed) for seed in range(3))[1]
    plain = run(0)
    best = min(run(k) for k in KS)
    assert plain / found > 0.97
    assert best / found > 0.95


CHANGES: dict[str, Rates] = {
    "collapses": lambda row, at: 0.85 if at < 300 else 0.0,
    "recovers": lambda row, at: 0.0 if at < 300 else 0.9,
    "comes and goes": lambda row, at: 0.9 if at // 60 % 2 else 0.05,
    "one in four drafts well": lambda row, at: 0.95 if row % 4 == 0 else 0.1,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_rows", [1, 4, 16])
def test_never_slower_when_acceptance_changes(change: str, num_rows: int) -> None:
    ratios = []
    for seed in range(3):
        found = Machine(num_rows, 512, CHANGES[change], seed=seed).run(900)
        ratios.append(Machine(num_rows, 512, CHANGES[change], seed=seed).run(900, 0) / found)
    assert sorted(ratios)[1] > 0.97


def test_acceptance_that_recovers_is_noticed() -> None:
    machine = Machine(1, 512, CHANGES["recovers"])
    machine.run(3000)
    assert machine.ks[-1] > 0
    assert machine.control.num_switches >= 2


def test_a_useless_drafter_is_left_alone() -> None:
    machine = Machine(1, 512, lambda row, at: 0.0)
    machine.run(2000)
    assert sum(k > 0 for k in machine.ks) / len(machine.ks) < 0.1
    assert "would emit" in machine.control.decision.why


def test_requests_that_do_not_draft_are_decoded_plainly() -> None:
    machine = Machine(1, 512, lambda row, at: 0.9)
    assert machine.control.choose([Row(0, 100, None)]).k == 0


def test_expected_tokens_follow_the_conditional_rates() -> None:
    acceptance = Acceptance(3, half_life=1e9)
    for num_accepted in (0, 1, 1, 3) * 500:
        acceptance.add(3, num_accepted)
    assert acceptance.rates() == pytest.approx([3 / 4, 1 / 3, 1.0], abs=0.01)
    assert expected_tokens(acceptance.rates()) == pytest.approx([1, 7 / 4, 2, 9 / 4], abs=0.02)


def test_costs_follow_what_is_seen_and_one_outlier_moves_nothing() -> None:
    costs = CostTable((1, 8), (0, 4))
    costs.set(8, 0, [(0, 0.001)])
    costs.set(8, 4, [(0, 0.010), (1000, 0.020)])
    assert costs.seconds(5, 4, 500) == pytest.approx(0.015)
    assert costs.observe(5, 4, 500, 0.3)
    assert costs.seconds(5, 4, 500) == pytest.approx(0.015)
    assert not costs.observe(5, 4, 500, 0.015)
    for _ in range(200):
        costs.observe(5, 4, 500, 0.018)
    assert costs.seconds(5, 4, 500) == pytest.approx(0.018, rel=0.01)
    costs.set(1, 0, [(0, 0.005)])
    assert costs.seconds(1, 4, 500) == pytest.approx(0.018, rel=0.01), "what was not measured takes its neighbour's"


def test_an_entry_that_is_far_off_is_corrected_once_that_is_certain() -> None:
    costs = CostTable((1,), (0, 4))
    costs.set(1, 0, [(0, 0.6)])
    costs.set(1, 4, [(0, 0.03)])
    for _ in range(6):
        costs.observe(1, 0, 0, 0.02)
    assert costs.seconds(1, 0, 0) == pytest.approx(0.02, rel=0.01)


def test_larger_batches_take_their_first_observation_whole() -> None:
    """One plain step of 16 rows says how much dearer the other entries of that bucket are, too."""
    costs = CostTable((1, 16), (0, 4))
    costs.set(1, 0, [(0, 0.010)])
    costs.set(1, 4, [(0, 0.012)])
    costs.observe(16, 0, 0, 0.080)
    assert costs.seconds(16, 0, 0) == pytest.approx(0.080)
    assert costs.seconds(16, 4, 0) == pytest.approx(0.096)
    costs.observe(16, 4, 0, 0.240)
    assert costs.seconds(16, 4, 0) == pytest.approx(0.240)
    assert costs.seconds(1, 4, 0) == pytest.approx(0.012)


def test_no_cycle_with_drafts_counts_as_cheaper_than_a_plain_step() -> None:
    costs = CostTable((1,), (0, 4))
    costs.set(1, 0, [(0, 0.010)])
    costs.set(1, 4, [(0, 0.001)])
    assert costs.seconds(1, 4, 0) == pytest.approx(0.010)


def test_a_pause_costs_nobody_their_credit() -> None:
    machine = Machine(1, 512, lambda row, at: 0.9)
    machine.run(400)
    machine.control.observe(CycleSeen(num_rows=1, k=3, context=900, num_emitted=3, seconds=30.0))
    before = len(machine.ks)
    machine.run(400)
    assert sum(k > 0 for k in machine.ks[before:]) > 0.9 * len(machine.ks[before:])


@pytest.mark.parametrize("plain_error", [0.2, 30.0])
@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_a_disturbed_calibration_is_found_out(plain_error: float, rate: float) -> None:
    machine = Machine(1, 512, lambda row, at: rate)
    machine.costs.set(1, 0, [(0, truth(1, 0, 0) * plain_error)])
    found = machine.run(4000)
    plain = Machine(1, 512, lambda row, at: rate).run(4000, 0)
    assert plain / found > (0.96 if rate == 0.0 else 2.0)


def test_a_probe_is_over_only_when_it_has_drafted() -> None:
    """While a catch-up is under way, control is asked again and again."""
    machine = Machine(1, 512, lambda row, at: 0.0)
    machine.run(300)
    rows = [Row(max(KS), 900, machine.control.start())]
    while machine.control.choose(rows).k == 0:
        machine.control.observe(CycleSeen(num_rows=1, k=0, context=900, num_emitted=1, seconds=truth(1, 0, 900)))
    assert [machine.control.choose(rows).k > 0 for _ in range(40)] == [True] * 40
