"""What a mixture's cycles cost follows the experts that they touch, on a simulated clock whose law is known."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.control import CycleSeen
from outpace.speculation.cost import CostTable
from outpace.speculation.experts import Experts
from speculation.test_control import Row

KS = (0, 1, 2, 3, 5, 7)
L, E, C = 60, 384, 8
EACH = 3.1e6 / 4.3e12
"""Seconds of one expert of one layer, on a rank of eight of Kimi-K2.5."""
REST = L * 68e6 / 4.3e12
DRAFT = 0.1e-3


def by_chance(num_tokens: int) -> float:
    return L * E * (1 - (1 - C / E) ** num_tokens)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8, 40])
def test_what_is_touched_by_chance_is_what_a_draw_touches(num_tokens: int) -> None:
    rng = random.Random(0)
    drawn = [len({e for _ in range(num_tokens) for e in rng.sample(range(E), C)}) for _ in range(2000)]
    assert Experts(L, E, C).by_chance(num_tokens) / L == pytest.approx(sum(drawn) / len(drawn), rel=0.01)


def test_sharing_is_learnt_once_for_all_numbers_of_tokens() -> None:
    experts = Experts(L, E, C)
    assert experts.expected(1) == pytest.approx(L * C)
    for _ in range(20):
        experts.learn(4, round(L * C + 0.25 * (by_chance(4) - L * C)))
    assert experts.expected(8) == pytest.approx(L * C + 0.25 * (by_chance(8) - L * C), rel=0.01)
    known = experts.excess
    experts.learn(1, L * C)
    assert experts.excess == known, "one token shares with nobody"
    assert experts.describe()["touched_last"] == L * C


@dataclass
class Mixture:
    """Runs one row's cycles on its own clock. Cycles take what they touch; text shares `sharing` of chance's excess."""

    sharing: float
    rate: float
    control: AutomaticControl
    seed: int = 0
    ks: list[int] = field(default_factory=list)
    clock: float = 0.0

    def touched(self, num_tokens: int) -> float:
        return L * C + self.sharing * (by_chance(num_tokens) - L * C)

    def seconds(self, k: int) -> float:
        return REST + EACH * self.touched(k + 1) + DRAFT * k

    def best(self) -> int:
        def speed(k: int) -> float:
            return sum(self.rate**place for place in range(k + 1)) / self.seconds(k)

        return max(KS, key=speed)

    def run(self, num_tokens: int) -> None:
        rng = random.Random(self.seed)
        row = Row(max(KS), 0, self.control.start())
        while row.num_new < num_tokens:
            k = self.control.choose([row]).k
            self.ks.append(k)
            if k and row.lags:
                self.clock += 2.5 * self.seconds(0)
                self.control.pay(1, 0, 2.5 * self.seconds(0))
            touched = round(self.touched(k + 1) * rng.uniform(0.97, 1.03)) if k else L * C
            seconds = (REST + EACH * touched + DRAFT * k) * rng.uniform(0.98, 1.02)
            self.clock += seconds
            accepted = 0
            while accepted < k and rng.random() < self.rate:
                accepted += 1
            if k:
                self.control.learn(row, k, accepted)
            row.lags = k == 0
            row.num_new += accepted + 1
            seen = CycleSeen(num_rows=1, k=k, context=0, num_emitted=accepted + 1, seconds=seconds, touched=touched)
            self.control.observe(seen)


def control(calibrated: float, *, counts: bool) -> AutomaticControl:
    """Calibrated with tokens that share so much; without `counts` the table knows nothing of experts."""
    costs = CostTable((1,), KS, Experts(L, E, C, seconds_each=EACH) if counts else None)
    for k in (0, 1, 3, 7):
        touched = L * C + calibrated * (by_chance(k + 1) - L * C)
        costs.set(1, k, [(0, REST + EACH * touched + DRAFT * k)], touched if counts else None)
    return AutomaticControl(costs)


CASES = [(0.2, 0.6), (0.2, 0.9), (0.5, 0.75), (1.0, 0.3), (1.0, 0.6), (1.0, 0.9)]


@pytest.mark.parametrize("calibrated", [0.0, 1.0])
@pytest.mark.parametrize(("sharing", "rate"), CASES)
def test_control_finds_the_best_k_however_calibration_routed(sharing: float, rate: float, calibrated: float) -> None:
    machine = Mixture(sharing, rate, control(calibrated, counts=True))
    machine.run(6000)
    often = Counter(machine.ks[len(machine.ks) // 2 :]).most_common(1)[0][0]
    chosen, best = (sum(rate**place for place in range(k + 1)) / machine.seconds(k) for k in (often, machine.best()))
    assert chosen > 0.97 * best, (often, machine.best())
    plain = 6000 * machine.seconds(0)
    assert plain / machine.clock > 0.97


def test_experts_that_are_counted_move_all_ks_at_once() -> None:
    """Of a machine that was calibrated with random text, and whose text shares much: after cycles of k = 1 alone."""
    found = {}
    for counts in (True, False):
        machine = Mixture(0.2, 0.9, control(1.0, counts=counts))
        for _ in range(20):
            seconds = machine.seconds(1)
            seen = CycleSeen(
                num_rows=1, k=1, context=0, num_emitted=2, seconds=seconds, touched=round(machine.touched(2))
            )
            machine.control.observe(seen)
        found[counts] = machine.control.costs.seconds(1, 7, 0) / machine.seconds(7)
    assert found[True] == pytest.approx(1.0, abs=0.02)
    assert found[False] > 1.4


def test_a_dense_target_is_left_as_it_was() -> None:
    dense, mixture = CostTable((1, 8), KS), CostTable((1, 8), KS, Experts(L, E, C, seconds_each=0.0))
    for table in (dense, mixture):
        for k in (0, 3, 7):
            table.set(
                1, k, [(0, 1e-3 * (1 + 0.1 * k)), (4096, 2e-3 * (1 + 0.1 * k))], 500.0 if table is mixture else None
            )
        for rows, k, seconds in ((1, 3, 1.5e-3), (8, 0, 1.2e-3), (8, 7, 3e-3)):
            table.observe(rows, k, 100, seconds, 600 if table is mixture else None)
    assert dense.by_k(8, 900) == mixture.by_k(8, 900)
    assert dense.by_k(1, 900) == mixture.by_k(1, 900)


def test_fewer_experts_never_make_a_cycle_free() -> None:
    costs = CostTable((1,), (0, 1), Experts(L, E, C, seconds_each=1.0))
    for k in (0, 1):
        costs.set(1, k, [(0, 1e-3)], 1e6)
    assert costs.seconds(1, 1, 0) == pytest.approx(0.2e-3)
