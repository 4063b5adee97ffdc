"""What a batch says at once: its texts have changed. One request alone says it slowly, and of itself."""

from __future__ import annotations

import random

import pytest

from outpace.speculation.acceptance import Acceptance, batch_tokens
from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.surprise import Surprise
from speculation.test_decisions import Row, table

K = 4


class Batch:
    """Requests that all draft K tokens a cycle, and what control believes of the first of them."""

    def __init__(self, num_rows: int) -> None:
        self.control = AutomaticControl(table((0, 1.0), (2, 1.25), (K, 1.5)))
        self.rows = [Row(acceptance=self.control.start()) for _ in range(num_rows)]
        self.random = random.Random(0)

    def cycle(self, rates: list[float]) -> None:
        for row, rate in zip(self.rows, rates, strict=True):
            num_accepted = next((place for place in range(K) if self.random.random() >= rate), K)
            self.control.learn(row, K, num_accepted)
        self.control.choose(self.rows)

    @property
    def believed(self) -> float:
        """Chance of a first draft, of all requests."""
        seen = [row.acceptance.seen_R for row in self.rows if row.acceptance is not None]
        return batch_tokens(seen, [K] * len(seen), self.control.overall.rates())[1] / len(seen) - 1.0

    def cycles_until(self, rate: float, near: float) -> int:
        number = 0
        while abs(self.believed - rate) > near:
            self.cycle([rate] * len(self.rows))
            number += 1
        return number


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.1), (0.1, 0.9)])
def test_many_requests_say_within_two_cycles_that_their_texts_have_changed(before: float, after: float) -> None:
    batch = Batch(64)
    for _ in range(60):
        batch.cycle([before] * 64)
    assert batch.believed == pytest.approx(before, abs=0.05)
    assert batch.cycles_until(after, near=0.2) <= 2
    for _ in range(4):
        batch.cycle([after] * 64)
    assert batch.believed == pytest.approx(after, abs=0.1)


def test_one_request_that_changes_says_nothing_of_the_others() -> None:
    batch = Batch(1)
    for _ in range(400):
        batch.cycle([0.9])
    for _ in range(12):
        batch.cycle([0.1])
    assert batch.believed < 0.5
    assert batch.control.overall.rates()[0] > 0.8


def test_requests_that_differ_are_no_surprise() -> None:
    """What is known of each stays known: the 200th cycle is judged by more than the last few."""
    batch = Batch(32)
    rates = [0.9 if row % 2 else 0.1 for row in range(32)]
    for _ in range(200):
        batch.cycle(rates)
    overall = batch.control.overall.rates()
    own = [batch_tokens([row.acceptance.seen_R], [K], overall)[1] - 1.0 for row in batch.rows if row.acceptance]
    assert sum(own[1::2]) / 16 > 0.75 and sum(own[0::2]) / 16 < 0.3


def test_drafts_as_expected_hardly_ever_surprise() -> None:
    """Each of 16 requests accepts 0 … 4 of 4 drafts as if each stood with the chance that is believed."""
    chance, surprise, alarms = random.Random(1), Surprise(), 0
    expected = sum(0.6**place for place in range(1, K + 1))
    for _ in range(2000):
        accepted = [next((p for p in range(K) if chance.random() >= 0.6), K) for _ in range(16)]
        alarms += surprise.adds_up(sum(accepted) - 16 * expected, 16 * expected * (K - expected))
    assert alarms <= 2


def test_a_single_draft_is_no_surprise_where_hardly_any_was_expected() -> None:
    surprise = Surprise()
    assert not surprise.adds_up(1.0 - 1e-6, variance=1e-6)
    assert surprise.adds_up(1.0, variance=1e-6), "but one after the other is"


def test_what_fades_keeps_its_rate() -> None:
    acceptance = Acceptance(2, half_life=8.0)
    for _ in range(50):
        acceptance.add(2, 2)
    before = acceptance.seen_R.copy()
    acceptance.fade(0.25)
    assert acceptance.seen_R == pytest.approx(0.25 * before)
