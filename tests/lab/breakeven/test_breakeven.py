from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import ConfigError
from outpace.lab.breakeven.balance import Balance, balance_of_ms, break_even_accept_length, round_speeds
from outpace.lab.breakeven.best_k import CostCurve, accept_lengths, best, choices, even_acceptance
from outpace.lab.breakeven.cost_rows import CostRows, read_cost_rows
from outpace.lab.breakeven.given import Figures
from outpace.lab.breakeven.heat import by_acceptance_and_verify, by_batch_and_context
from outpace.lab.breakeven.report import report


def balance(**changes: float) -> Balance:
    values = {"accept_length": 2.0, "cycle_s": 0.0333, "step_s": 0.0121, "draft_s": 0.002, "verify_s": 0.0293}
    return Balance(**{**values, **changes}, k=2)  # type: ignore[arg-type]


def test_the_case_that_outpace_starts_from() -> None:
    """Accept length 2.0 at 60 tok/s against 12.1 ms a plain step: 2.75 tokens would have been needed."""
    case = balance()
    assert case.break_even == pytest.approx(2.752, abs=1e-3)
    assert case.speedup == pytest.approx(0.727, abs=1e-3)
    assert case.verify_steps + case.draft_steps + case.rest_steps == pytest.approx(case.break_even)
    assert case.why().startswith("A cycle brings 2.00 tokens and breaks even at 2.75: verifying 3 tokens costs 2.42")


def test_a_cycle_that_takes_no_more_than_a_step() -> None:
    cheap = given_balance(verify_ms=10.0)
    assert cheap.why().startswith("A cycle brings 2.00 tokens and breaks even at 0.83, so every cycle pays: verifying")


@pytest.mark.parametrize(("cycle", "step"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_times_must_be_positive(cycle: float, step: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        break_even_accept_length(cycle, step)


def test_it_needs_no_torch() -> None:
    code = "import sys, outpace.lab.breakeven.balance; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_of_the_given_figures() -> None:
    """12.1 ms a step, 29.3 ms a verify, 2 tokens: break-even 2.42, and 4.4 for 150 tok/s."""
    case = given_balance()
    assert case.break_even == pytest.approx(2.4215, abs=1e-4)
    assert case.accept_length_for(150.0) == pytest.approx(4.395)
    assert case.plain_tok_s == pytest.approx(82.64, abs=0.01)
    assert case.tok_s == pytest.approx(68.26, abs=0.01)


def given_balance(**changes: Any) -> Balance:
    figures: dict[str, Any] = {"decode_ms": 12.1, "verify_ms": 29.3, "accept_length": 2.0, "k": None}
    return balance_of_ms(**{**figures, "draft_ms": 0.0, "other_ms": 0.0, **changes})


@given(*[st.floats(0.1, 100)] * 2, *[st.floats(1, 10)] * 3, st.floats(1, 500))
def test_what_a_speed_takes_gives_that_speed(
    decode: float, verify: float, length: float, draft: float, other: float, wish: float
) -> None:
    b = given_balance(decode_ms=decode, verify_ms=verify, accept_length=length, draft_ms=draft, other_ms=other)
    assert b.accept_length_for(wish) / b.cycle_s == pytest.approx(wish)
    cycle_s = b.verify_s_for(wish) + b.draft_s + b.rest_s
    assert b.accept_length / cycle_s == pytest.approx(wish, rel=1e-6)
    assert (b.tok_s > b.plain_tok_s) == (b.accept_length > b.break_even)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_ms": 0.0}, "decode-ms is 0; it must be above 0"),
        ({"verify_ms": float("nan")}, "verify-ms is nan"),
        ({"draft_ms": -1.0}, "draft-ms is -1"),
        ({"accept_length": 0.5}, "accept-length is 0.5; it must be in 1"),
        ({"accept_length": 3.5, "k": 2}, "accept-length is 3.5; it must be in 1 … 3"),
    ],
)
def test_figures_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        given_balance(**changes)


def test_without_k_the_sentence_names_no_number_of_tokens() -> None:
    assert "verifying costs 2.42 plain steps, drafting costs 0.00" in given_balance().why()


def test_round_speeds() -> None:
    assert round_speeds(82.6) == [100, 125, 150, 175, 200]
    assert round_speeds(9.0) == [10, 12.5, 15, 17.5, 20, 22.5]


@given(st.floats(1e-3, 1e6))
def test_round_speeds_lie_above_plain(plain: float) -> None:
    found = round_speeds(plain)
    assert 3 <= len(found) <= 8
    assert all(plain < speed <= 2.5 * plain * 1.000001 for speed in found)


def test_accept_lengths_multiply_the_chances() -> None:
    assert accept_lengths([0.8, 0.7, 0.6]) == pytest.approx([1.0, 1.8, 2.36, 2.696])
    assert accept_lengths([even_acceptance(2.2, 3)] * 3)[-1] == pytest.approx(2.2)


def test_costs_are_straight_lines_between_what_is_known_and_nothing_beyond() -> None:
    curve = CostCurve({0: 10.0, 2: 20.0, 4: 22.0})
    assert [curve.at(k) for k in range(6)] == [10.0, 15.0, 20.0, 21.0, 22.0, None]


def test_the_best_k_stops_where_a_draft_costs_more_than_it_brings() -> None:
    found = choices([0.8, 0.7, 0.2], CostCurve({0: 10, 3: 11.5}), CostCurve({0: 0, 3: 3}), other_ms=0, plain_ms=10)
    assert best(found).k == 2
    dear = choices([0.8], CostCurve({0: 10, 1: 30}), CostCurve({0: 0, 1: 1}), other_ms=0, plain_ms=10)
    assert best(dear).k == 0


ROWS = [
    {"bucket": 1, "k": 0, "base_ms": 10.0, "us_per_1k_context": 100.0, "source": "measured"},
    {"bucket": 1, "k": 2, "base_ms": 12.0, "us_per_1k_context": 100.0},
    {"bucket": 8, "k": 0, "base_ms": 12.0, "us_per_1k_context": 100.0},
    {"bucket": 8, "k": 2, "base_ms": 40.0, "us_per_1k_context": 100.0},
]


@pytest.mark.parametrize("data", [ROWS, {"costs": ROWS}, {"control": {"kind": "auto", "costs": ROWS}}])
def test_a_cost_table_is_found_where_an_engine_puts_it(data: Any) -> None:
    costs = read_cost_rows(json.dumps(data), "costs.json")
    assert costs.buckets == [1, 8]
    plain, drafted = costs.choices(8, 1000, [0.9, 0.9])
    assert plain.cycle_ms == pytest.approx(12.8)  # 8 rows of 1,000 tokens, 0.1 ms for each thousand
    assert drafted.cycle_ms == pytest.approx(40.8)
    heat = by_batch_and_context(costs, [0.9, 0.9])
    assert heat.notes[0][0] == "k2"
    assert heat.notes[1][0] == "k0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not JSON"),
        ("{}", "holds no cost table"),
        ("[1]", "row 1 is 1"),
        (json.dumps([{**ROWS[0], "k": 99}]), "k is 99; it must be a number in 0 … 15"),
        (json.dumps([{**ROWS[0], "base_ms": "x"}]), "base_ms is 'x'"),
        (json.dumps([ROWS[1]]), "no row of k 0 for bucket 1"),
    ],
)
def test_what_is_no_cost_table(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_cost_rows(text, "costs.json")


def test_the_map_marks_the_given_figures() -> None:
    heat = by_acceptance_and_verify(given_balance())
    row, column = heat.here or (-1, -1)
    assert heat.rows[row] == "2.00"
    assert heat.columns[column] == "2.42"
    assert heat.values[row][column] == pytest.approx(given_balance().speedup)


ONE_COST = CostRows({1: {0: (1.0, 0.0)}})


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (Figures(), "give --decode-ms and --verify-ms, or --costs"),
        (Figures(decode_ms=1.0, verify_ms=1.0), "give --accept-length, or --acceptance"),
        (Figures(acceptance=(1.5,)), "acceptance at place 1 is 1.5"),
        (Figures(costs=ONE_COST), "--acceptance, or --accept-length with --k"),
        (Figures(decode_ms=1, verify_ms=1, accept_length=1, wish_tok_s=-5), "wish-tok-s is -5"),
        (Figures(decode_ms=1, verify_ms=1, accept_length=1, verify_ms_at={1: 1}), "--verify-ms-at is for choosing k"),
        (Figures(decode_ms=1, verify_ms=1, accept_length=1, draft_ms_at={1: 1}), "--draft-ms-at is for choosing k"),
        (Figures(decode_ms=1, verify_ms=1, acceptance=(0.5,), k=2), "k is 2, but --acceptance has 1 place: "),
        (
            Figures(decode_ms=1, verify_ms=1, acceptance=(0.5,), accept_length=2),
            "but --acceptance gives 1.50 at k 1",
        ),
        *(
            (Figures(costs=ONE_COST, acceptance=(0.5,), **{name: 3}), f"--{name.replace('_', '-')} is of a cycle")
            for name in ("decode_ms", "verify_ms", "draft_ms", "other_ms", "wish_tok_s")
        ),
        (Figures(costs=ONE_COST, acceptance=(0.5,), verify_ms_at={1: 1}), "--verify-ms-at is of a cycle"),
    ],
)
def test_what_a_report_needs(figures: Figures, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        report(figures)


def test_the_cost_model_is_stated() -> None:
    found = report(Figures(decode_ms=10, verify_ms=16, draft_ms=3, acceptance=(0.8, 0.7, 0.6)))
    assert "an assumption" in found.cost_model
    assert [round(choice.cycle_ms, 6) for choice in found.choices] == [10.0, 13.0, 16.0, 19.0]
    measured = report(Figures(decode_ms=10, verify_ms=16, acceptance=(0.8, 0.7, 0.6), verify_ms_at={1: 11.0, 2: 15.0}))
    assert "as given (11 ms at k 1, 15 ms at k 2)" in measured.cost_model
    assert [choice.k for choice in measured.choices] == [0, 1, 2]


def test_acceptance_may_be_given_both_ways_if_it_means_the_same() -> None:
    found = report(Figures(decode_ms=10, verify_ms=16, acceptance=(0.8, 0.7), accept_length=2.4, k=2))
    assert found.balance is not None and found.balance.accept_length == 2.4
    assert [choice.k for choice in found.choices] == [0, 1, 2]


def test_k_is_the_most_that_is_looked_for_in_a_cost_table() -> None:
    costs = read_cost_rows(json.dumps(ROWS), "costs.json")
    found = [report(Figures(costs=costs, acceptance=(0.9, 0.9), k=k)).heats[0].notes[0][0] for k in (2, 1)]
    assert found == ["k2", "k0"]
