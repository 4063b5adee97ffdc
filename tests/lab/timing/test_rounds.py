from __future__ import annotations

import random
from math import log

import pytest

from outpace.lab.intervals.sign_test import MIN_ROUNDS
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms


def test_every_variant_runs_once_a_round_in_mirrored_order() -> None:
    order: list[str] = []
    rounds: list[int] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    assert interleave(["a", "b", "c"], 2, measure, rounds.append) == [[1, 6], [2, 5], [3, 4]]
    assert order == ["a", "b", "c", "c", "b", "a"]
    assert rounds == [1, 2]


def test_what_slows_a_whole_round_leaves_the_ratio_alone() -> None:
    ratio = paired_ratio([2.0, 20.0, 2.0, 200.0, 2.0, 2.0], [1.0, 10.0, 1.0, 100.0, 1.0, 1.0])
    assert (ratio.value, ratio.bounds) == (2.0, (2.0, 2.0))


def test_the_interval_says_how_far_rounds_disagree() -> None:
    ratio = paired_ratio([1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [1.0] * 6)
    assert ratio.value == 1.0
    assert ratio.bounds == (0.9, 1.1)
    assert paired_ratio([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.01, 0.99, 7.0], [1.0] * 9).bounds == (0.95, 1.1)


@pytest.mark.parametrize("num", [6, 7, 9, 20, 40])
def test_the_interval_holds_the_median_as_often_as_it_says(num: int) -> None:
    draw = random.Random(num)
    held = 0
    for _ in range(2000):
        low, high = paired_ratio([draw.expovariate(1.0) for _ in range(num)], [1.0] * num).bounds or (0.0, 0.0)
        held += low <= log(2.0) <= high
    assert 0.945 <= held / 2000 <= 0.995


def test_few_rounds_have_no_interval() -> None:
    few = ratio_as_dict(paired_ratio([1.0] * (MIN_ROUNDS - 1), [2.0] * (MIN_ROUNDS - 1)))
    assert few == {"median": 0.5, "low": None, "high": None}


def test_spread_is_in_milliseconds() -> None:
    assert spread_ms([i / 1e3 for i in range(101)]) == pytest.approx({"median": 50.0, "p5": 5.0, "p95": 95.0})
    assert spread_ms([0.002]) == {"median": 2.0, "p5": 2.0, "p95": 2.0}
