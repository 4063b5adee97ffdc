"""Control on a simulated clock: never slower than plain decoding, and close to the best k there is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import pytest

from outpace.speculation.acceptance import Acceptance, batch_tokens
from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.control import CycleSeen
from outpace.speculation.cost import CostTable

KS = (0, 1, 2, 3, 5, 7)
BUCKETS = (1, 4, 16, 64)
NUM_TOKENS = {1: 1500, 4: 800, 16: 500, 64: 300}
"""Tokens a row: fewer rows need longer runs before luck evens out."""
CATCH_UP = 0.5
"""Plain steps that a catch-up takes."""

Rates = Callable[[int, int], float]
"""(row, tokens it has written) → chance that a draft is accepted."""


@dataclass
class Row:
    max_k: int
    num_cached: int
    acceptance: Acceptance | None
    num_left: int = 1 << 30
    num_new: int = 0
    lags: bool = False


KV = 131072 / 4.3e12
"""Seconds that a token of context takes: its keys and values, at the rate of an H200."""
PLAIN = {rows: seconds - rows * 512 * KV for rows, seconds in ((1, 4.1e-3), (4, 4.2e-3), (16, 4.5e-3), (64, 6.0e-3))}
"""Seconds of a plain step but for its context: an 8B target."""
DRAFT = 0.21e-3
"""Seconds of a draft for one row; for 64 rows twice that."""
RATE = 4.5e14
"""Operations a second of products of 128 to 512 tokens, as a GPU was seen to do them."""


def truth(num_rows: int, k: int, context: int) -> float:
    """Seconds of a cycle: weights once, dearer by a hundredth a token until arithmetic takes over; then K/V, drafts."""
    weights, num_tokens = PLAIN[num_rows] * (1.0 + 0.01 * k), num_rows * (k + 1)
    arithmetic = num_tokens * 16e9 / RATE if num_tokens > 64 else 0.0
    return float((weights**4 + arithmetic**4) ** 0.25) + context * KV + k * DRAFT * (1.0 + num_rows / 64)


@dataclass
class Machine:
    """Runs cycles of a batch under a control, on its own clock."""

    num_rows: int
    context: int
    rates: Rates
    table_error: float = 0.03
    seed: int = 0
    measured: tuple[int, ...] = (1, 16, 64)
    slow: Callable[[int, int], float] = lambda k, cycle: 1.0
    """(k, cycle) → how many times as long it takes as it should."""
    clock: float = 0.0
    ks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.costs = CostTable(BUCKETS, KS)
        for rows, k in product(self.measured, (0, 1, 3, 7)):  # the rest is interpolated, as after a calibration
            error = 1.0 + self.table_error * self.random.uniform(-1.0, 1.0)
            self.costs.set(rows, k, [(rows * c, truth(rows, k, rows * c) * error) for c in (64, 4096)])
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
            spent = CATCH_UP * truth(self.num_rows, 0, total) * self.slow(0, len(self.ks))
            self.clock += spent
            self.control.pay(self.num_rows, total, spent)
        seconds = truth(self.num_rows, k, total) * self.slow(k, len(self.ks)) * self.random.uniform(0.97, 1.03)
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
@pytest.mark.parametrize(("context", "measured"), [(512, (1, 16, 64)), (8192, (1, 64)), (512, (1,))])
def test_never_slower_and_close_to_the_best(
    rate: float, num_rows: int, context: int, measured: tuple[int, ...]
) -> None:
    def run(fixed: int | None = None, seed: int = 0) -> float:
        machine = Machine(num_rows, context, lambda row, at: rate, seed=seed, measured=measured)
        return machine.run(NUM_TOKENS[num_rows], fixed)

    found = sorted(run(seed=seed) for seed in range(3))[1]
    plain = run(0)
    best = min(plain, *(run(k) for k in KS[1:]))
    assert plain / found > 0.97
    assert best / found > 0.95


CHANGES: dict[str, Rates] = {
    "collapses": lambda row, at: 0.85 if at < 300 else 0.0,
    "recovers": lambda row, at: 0.0 if at < 300 else 0.9,
    "comes and goes": lambda row, at: 0.9 if at // 60 % 2 else 0.05,
    "fades": lambda row, at: 0.9 * max(0.0, 1.0 - at / 400),
}
DIFFERENCES: dict[str, Rates] = {
    "every second drafts well": lambda row, at: 0.95 if row % 2 == 0 else 0.0,
    "one in four drafts well": lambda row, at: 0.95 if row % 4 == 0 else 0.1,
    "one in eight drafts well": lambda row, at: 0.95 if row % 8 == 0 else 0.0,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_rows", BUCKETS)
def test_never_slower_when_acceptance_changes(change: str, num_rows: int) -> None:
    def run(seed: int, fixed: int | None = None) -> float:
        return Machine(num_rows, 512, CHANGES[change], seed=seed).run(min(900, 2 * NUM_TOKENS[num_rows]), fixed)

    ratios = sorted(run(seed, 0) / run(seed) for seed in range(3))
    assert ratios[1] > 0.97


@pytest.mark.parametrize("stretch", [32, 48, 64, 96])
@pytest.mark.parametrize("num_rows", BUCKETS)
def test_a_change_is_followed_within_a_few_cycles(num_rows: int, stretch: int) -> None:
    """Acceptance comes and goes: 48 tokens are half a dozen cycles of seven drafts, then 48 plain steps."""

    def run(seed: int, fixed: int | None = None) -> float:
        rates = lambda row, at: 0.9 if at // stretch % 2 == 0 else 0.1  # noqa: E731
        return Machine(num_rows, 512, rates, seed=seed).run(max(NUM_TOKENS[num_rows], 8 * stretch), fixed)

    found = sorted(run(seed) for seed in range(3))[1]
    assert min(run(0, k) for k in KS) / found > 0.95


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("num_rows", [4, 16, 64])
def test_requests_that_differ_get_what_is_best_for_all_of_them(difference: str, num_rows: int) -> None:
    def run(fixed: int | None = None) -> float:
        return Machine(num_rows, 512, DIFFERENCES[difference]).run(NUM_TOKENS[num_rows], fixed)

    found, plain = run(), run(0)
    assert plain / found > 0.97
    assert min(plain, *(run(k) for k in KS[1:])) / found > 0.95


def test_requests_one_after_another_are_judged_one_by_one() -> None:
    """Every second one drafts well: what is known of all of them must not drown what is seen of one."""

    def run(fixed: tuple[int | None, int | None]) -> float:
        machine = Machine(1, 512, lambda row, at: 0.0)
        for number in range(20):
            machine.rates = (lambda row, at: 0.95) if number % 2 else (lambda row, at: 0.0)
            machine.run(150, fixed[number % 2])
        return machine.clock

    found = run((None, None))
    assert run((0, 0)) / found > 1.4
    assert run((0, 7)) / found > 0.9


@pytest.mark.parametrize("num_rows", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_the_best_by_brute_force(num_rows: int, seed: int) -> None:
    """Whatever each request accepts, and however few drafts it takes."""
    chance = random.Random(seed)
    machine = Machine(num_rows, 512, lambda row, at: 0.0, table_error=0.0)
    rates = [chance.choice([0.0, 0.3, 0.6, 0.95]) for _ in range(num_rows)]
    rows = [Row(chance.choice([0, 1, 3, 7, 7]), chance.randrange(9000), machine.control.start()) for _ in rates]
    rows[0].max_k = 7
    for rate, row in zip(rates, rows, strict=True):
        for _ in range(400):
            num_accepted = next((place for place in range(7) if chance.random() >= rate), 7)
            machine.control.learn(row, 7, num_accepted)

    def speed(k: int) -> float:
        tokens = sum(
            sum(rate**place for place in range(min(k, row.max_k) + 1)) for rate, row in zip(rates, rows, strict=True)
        )
        return tokens / machine.costs.seconds(num_rows, k, sum(row.num_cached for row in rows))

    total = sum(row.num_cached for row in rows)
    for _ in range(4):  # what a plain step takes is checked first
        seconds = machine.costs.seconds(num_rows, 0, total)
        machine.control.observe(CycleSeen(num_rows=num_rows, k=0, context=total, num_emitted=num_rows, seconds=seconds))
    assert speed(machine.control.choose(rows).k) > 0.95 * max(speed(k) for k in KS)


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
    assert batch_tokens([acceptance.seen_R], [3], [0.5] * 3) == pytest.approx([1, 7 / 4, 2, 9 / 4], abs=0.02)
    assert batch_tokens([acceptance.seen_R] * 2, [3, 1], [0.5] * 3) == pytest.approx([2, 7 / 2, 15 / 4, 4], abs=0.04)
    unseen = Acceptance(3, half_life=9)
    assert batch_tokens([unseen.seen_R], [3], [0.5, 0.4, 0.0]) == pytest.approx([1, 1.5, 1.7, 1.7])


def test_a_place_that_was_not_reached_is_taken_for_the_one_before_it() -> None:
    acceptance = Acceptance(3, half_life=1e9)
    assert acceptance.rates() == [0.6] * 3, "what a fitting drafter reaches"
    for _ in range(4000):
        acceptance.add(1, 1)
    assert acceptance.rates() == pytest.approx([1.0] * 3, abs=0.001)


def test_cycles_that_are_added_at_once_count_as_one_after_another() -> None:
    one_by_one, at_once = Acceptance(5, half_life=20.0), Acceptance(5, half_life=20.0)
    chance = random.Random(3)
    for _ in range(4):
        cycles = [(drafts := chance.randint(1, 5), chance.randint(0, drafts)) for _ in range(chance.randint(0, 40))]
        for num_drafts, num_accepted in cycles:
            one_by_one.add(num_drafts, num_accepted)
        at_once.add_all(cycles)
    assert at_once.seen_R == pytest.approx(one_by_one.seen_R, rel=1e-12)
    assert at_once.rates() == pytest.approx(one_by_one.rates())


def test_costs_follow_what_is_seen_and_one_outlier_moves_nothing() -> None:
    costs = CostTable((1, 8), (0, 4))
    costs.set(8, 0, [(0, 0.001)])
    costs.set(8, 4, [(0, 0.010), (1000, 0.020)])
    assert costs.seconds(5, 4, 500) == pytest.approx(0.015)
    assert costs.observe(5, 4, 500, 0.3) == "disturbed"
    assert costs.seconds(5, 4, 500) == pytest.approx(0.015)
    assert costs.observe(5, 4, 500, 0.015) == "usual"
    for _ in range(200):
        costs.observe(5, 4, 500, 0.018)
    assert costs.seconds(5, 4, 500) == pytest.approx(0.018, rel=0.01)
    costs.set(1, 0, [(0, 0.005)])
    assert costs.seconds(1, 4, 500) == pytest.approx(0.018, rel=0.01), "what was not measured takes its neighbour's"


def test_costs_between_measured_ones_are_interpolated_and_others_borrowed() -> None:
    costs = CostTable((1, 8, 16, 32, 64), (0, 1, 2, 4))
    for bucket in (8, 32):
        for k in (0, 1, 4):
            line = [(c, 1e-3 * (bucket + 10 * k) + 1e-6 * (k + 1) * c) for c in (100, 500, 900, 5000)]
            costs.set(bucket, k, line)
    assert costs.seconds(8, 2, 300) == pytest.approx(0.028 + 3e-6 * 300), "between two k's"
    assert costs.seconds(14, 4, 0) == pytest.approx(0.056), "between two buckets"
    assert costs.seconds(16, 2, 1000) == pytest.approx(0.036 + 3e-3), "between both"
    assert costs.seconds(64, 4, 0) == costs.seconds(32, 4, 0) and costs.seconds(1, 4, 0) == costs.seconds(8, 4, 0)
    sources = {(row["bucket"], row["k"]): row["source"] for row in costs.as_dict()}
    assert {sources[8, k] for k in (0, 1, 4)} == {"measured"}
    assert {sources[8, 2], sources[16, 0], sources[16, 2]} == {"interpolated"}
    assert {sources[1, 4], sources[64, 0]} == {"borrowed"}
    costs.observe(16, 0, 0, 0.020)
    assert costs.seconds(16, 4, 0) == pytest.approx(0.070), "what one k of such a bucket takes says it of all"
    costs.observe(8, 2, 0, 0.030)
    assert costs.seconds(8, 2, 0) == pytest.approx(0.029), "between measured k's, both count"
    assert costs.seconds(8, 4, 0) == pytest.approx(0.048)


def test_a_line_through_noisy_points_never_falls() -> None:
    costs = CostTable((1,), (0, 4))
    costs.set(1, 0, [(0, 0.010), (1000, 0.008), (2000, 0.006)])
    assert costs.seconds(1, 0, 10_000) == pytest.approx(0.008)
    costs.set(1, 0, [(0, 0.010), (1000, 0.0111), (2000, 0.0119)])
    assert costs.seconds(1, 0, 4000) == pytest.approx(0.0139, rel=0.01)


def test_an_entry_that_is_far_off_is_corrected_once_that_is_certain() -> None:
    costs = CostTable((1,), (0, 4))
    costs.set(1, 0, [(0, 0.6)])
    costs.set(1, 4, [(0, 0.03)])
    for _ in range(6):
        costs.observe(1, 0, 0, 0.02)
    assert costs.seconds(1, 0, 0) == pytest.approx(0.02, rel=0.01)


def test_only_outliers_in_a_row_are_certain_and_what_follows_them_is_believed() -> None:
    costs = CostTable((1,), (0,))
    costs.set(1, 0, [(0, 0.01)])
    for _ in range(100):
        costs.observe(1, 0, 0, 0.01)
    for seconds in (0.1, 0.1, 0.01, 0.1, 0.1, 0.01):
        costs.observe(1, 0, 0, seconds)
    assert costs.seconds(1, 0, 0) == pytest.approx(0.01)
    for _ in range(3):
        costs.observe(1, 0, 0, 0.1)
    assert costs.seconds(1, 0, 0) == pytest.approx(0.1)
    costs.observe(1, 0, 0, 0.12)
    assert costs.seconds(1, 0, 0) == pytest.approx(0.11), "the hundred before say nothing any more"


def test_more_rows_move_what_a_forward_takes_and_not_what_a_token_of_context_does() -> None:
    costs = CostTable((1, 16), (0, 4))
    for k, base in ((0, 0.01), (4, 0.012)):
        costs.set(1, k, [(0, base), (1000, base + 0.01)])
    costs.observe(16, 0, 1000, 0.08)
    assert [costs.seconds(16, 0, context) for context in (0, 1000, 3000)] == pytest.approx([0.07, 0.08, 0.1])
    assert [costs.seconds(16, 4, context) for context in (0, 1000)] == pytest.approx([0.084, 0.094])


def test_what_lies_between_is_taken_from_its_neighbours_as_they_are_known_by_now() -> None:
    costs = CostTable((8, 16, 32), (0,))
    for bucket in (8, 32):
        costs.set(bucket, 0, [(0, 0.02), (1000, 0.03)])
    for _ in range(300):
        costs.observe(8, 0, 1000, 0.06)
    assert [costs.seconds(16, 0, context) for context in (0, 1000)] == pytest.approx([0.1 / 3, 0.05], rel=0.01)


def test_what_was_not_seen_keeps_its_proportion_to_the_nearest_that_was() -> None:
    costs = CostTable((1, 16), (0, 4, 5))
    for k, base in ((0, 0.01), (4, 0.02), (5, 0.022)):
        costs.set(1, k, [(0, base)])
    costs.observe(16, 4, 0, 0.04)
    costs.observe(16, 0, 0, 0.03)
    assert [costs.seconds(16, k, 0) for k in (0, 4, 5)] == pytest.approx([0.03, 0.04, 0.044])


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
