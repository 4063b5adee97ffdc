from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.lab.intervals.bootstrap import MIN_VALUES
from outpace.lab.intervals.verdict import kind
from outpace.lab.timing.samples import Sample, mirrored, speed_ratio, total_tok_s


def sample(tokens: int, *seconds: float) -> Sample:
    return Sample(tokens=[tokens] * len(seconds), seconds=seconds)


def test_order_is_mirrored() -> None:
    assert list(mirrored(3, 2)) == [0, 1, 2, 2, 1, 0]
    assert list(mirrored(2, 4)) == [0, 1, 1, 0, 0, 1, 1, 0]


@given(st.floats(-0.01, 0.01), st.integers(2, 4))
def test_mirroring_cancels_a_steady_drift(drift: float, num_contenders: int) -> None:
    clock, seen = 1.0, [0.0] * num_contenders
    for index in mirrored(num_contenders, 2):
        seen[index] += clock
        clock += drift
    assert seen == pytest.approx([seen[0]] * num_contenders)


def test_total_weighs_prompts_by_their_tokens() -> None:
    assert total_tok_s([sample(10, 1.0), sample(30, 1.0)]) == pytest.approx(20.0)
    assert total_tok_s([]) == 0.0


def test_a_round_that_was_disturbed_counts_little() -> None:
    assert sample(10, 1.0, 1.0, 9.0).tok_s == pytest.approx(10.0)


def test_ratio_and_its_interval() -> None:
    fast = [sample(10, 0.5), sample(10, 0.4), sample(10, 0.6), sample(10, 0.5)]
    slow = [sample(10, 1.0)] * 4
    ratio = speed_ratio(fast, slow)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.bounds is not None
    assert 1.6 < ratio.bounds[0] < 2.0 < ratio.bounds[1] < 2.5
    assert kind(ratio) == "faster"
    assert speed_ratio(fast, slow) == ratio, "the interval does not change from call to call"


def test_equal_speeds_are_inconclusive() -> None:
    a, b = [sample(10, 1.0), sample(10, 1.1)] * 2, [sample(10, 1.1), sample(10, 1.0)] * 2
    ratio = speed_ratio(a, b)
    assert ratio.bounds is not None
    assert kind(ratio) == "inconclusive"


@pytest.mark.parametrize("num_prompts", [0, 1, MIN_VALUES - 1])
def test_few_prompts_have_no_interval_and_conclude_nothing(num_prompts: int) -> None:
    ratio = speed_ratio([sample(10, 0.5, 0.5)] * num_prompts, [sample(10, 1.0, 1.0)] * num_prompts)
    assert ratio.bounds is None
    assert kind(ratio) == "inconclusive"
    assert ratio.value == (2.0 if num_prompts else 0.0)


def test_the_interval_holds_the_noise_between_rounds() -> None:
    quiet = speed_ratio([sample(10, 0.5, 0.5)] * 4, [sample(10, 1.0, 1.0)] * 4)
    noisy = speed_ratio([sample(10, 0.3, 0.7)] * 4, [sample(10, 1.0, 1.0)] * 4)
    assert quiet.bounds == (2.0, 2.0)
    assert noisy.bounds is not None
    assert noisy.bounds[0] < noisy.value - 0.3
    assert noisy.bounds[1] > noisy.value + 0.3


def test_what_slows_a_whole_round_is_no_noise_of_the_ratio() -> None:
    ratio = speed_ratio([sample(10, 0.5, 1.0)] * 4, [sample(10, 1.0, 2.0)] * 4)
    assert ratio.bounds == pytest.approx((2.0, 2.0))


def test_an_answer_of_one_token_has_no_speed() -> None:
    assert speed_ratio([sample(0, 0.0)], [sample(0, 0.0)]).value == 0.0
