from __future__ import annotations

from collections.abc import Sequence

import pytest

from outpace import RequestStats, Result
from outpace.lab.workload.acceptance import figures, overall, summarise


def result(
    tokens: Sequence[int], cycles: int, drafted_at: tuple[int, ...] = (), accepted_at: tuple[int, ...] = ()
) -> Result:
    emitted = len(tokens) - 1
    if not drafted_at:
        drafted_at, accepted_at = (cycles,), (0,)
    stats = RequestStats(cycles=cycles, emitted=emitted, drafted_at=drafted_at, accepted_at=accepted_at, reused=0)
    return Result(prompt_ids=(1,), token_ids=tuple(tokens), text="", finish_reason="stop", stats=stats)


STRAIGHT = list(range(41))
LOOPED = [1, 2, 3] * 20 + [4]


def test_both_means_and_both_selections() -> None:
    report = summarise("set", 0.0, [result(STRAIGHT, 20), result(LOOPED, 12)])
    assert report.num_looped == 1
    assert report.all_answers.accept_length == pytest.approx(100 / 32)
    assert report.all_answers.mean_per_answer == pytest.approx((2.0 + 5.0) / 2)
    assert report.without_loops.accept_length == pytest.approx(2.0)
    assert report.without_loops.num_answers == 1


def test_acceptance_by_position_is_accepted_over_drafted() -> None:
    found = figures([result(STRAIGHT, 30, (30, 20), (24, 5)), result(STRAIGHT, 10, (10,), (6,))])
    assert found.acceptance_by_position == pytest.approx((30 / 40, 5 / 20))


def test_answers_of_one_token_ran_no_cycle() -> None:
    found = figures([result([5], 0, ()), result(STRAIGHT, 40)])
    assert found.num_answers == 1
    assert found.accept_length == pytest.approx(1.0)


def test_nothing_at_all_is_zero() -> None:
    assert figures([]).accept_length == 0.0
    assert overall([]) == 0.0


def test_every_set_weighs_the_same_in_the_mean() -> None:
    reports = [summarise("a", 0.0, [result(STRAIGHT, 20)]), summarise("b", 0.0, [result(STRAIGHT, 10)] * 5)]
    assert overall(reports) == pytest.approx(3.0)
