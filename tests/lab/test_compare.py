from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.lab.compare import Sample, mirrored, speed_ratio, total_tok_s


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
    fast = [sample(10, 0.5), sample(10, 0.4), sample(10, 0.6)]
    slow = [sample(10, 1.0), sample(10, 1.0), sample(10, 1.0)]
    ratio = speed_ratio(fast, slow)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low < 2.0 < ratio.high
    assert ratio.conclusive
    assert speed_ratio(fast, slow) == ratio, "the interval does not change from call to call"


def test_equal_speeds_are_inconclusive() -> None:
    a, b = [sample(10, 1.0), sample(10, 1.1)], [sample(10, 1.1), sample(10, 1.0)]
    assert not speed_ratio(a, b).conclusive


def test_one_prompt_has_no_interval() -> None:
    ratio = speed_ratio([sample(10, 0.5)], [sample(10, 1.0)])
    assert ratio.low == ratio.value == ratio.high


def test_an_answer_of_one_token_has_no_speed() -> None:
    assert speed_ratio([sample(0, 0.0)], [sample(0, 0.0)]).value == 0.0
