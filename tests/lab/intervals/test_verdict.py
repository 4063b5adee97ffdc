"""Words follow intervals: of all ratios with the same interval the same is said, whatever their values."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from outpace.lab.intervals import verdict
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.rank_sums import LEAST, ratio_bounds
from outpace.lab.intervals.verdict import Over, in_short, kind, lead, more, settles, times

ROUNDS = Over(num=6, least=6, name="rounds", flag="--num-rounds")
PACKAGE = Path(verdict.__file__).parents[2]


def ratio(value: float, *bounds: float) -> Interval:
    return Interval(value=value, bounds=(bounds[0], bounds[1]) if bounds else None)


@pytest.mark.parametrize(
    ("found", "begins", "short"),
    [
        (ratio(1.5, 1.2, 1.8), "Speculation pays", "pays"),
        (ratio(0.7, 0.6, 0.9), "Speculation does not pay", "does not pay"),
        (ratio(1.0, 0.99, 1.01), "Speculation makes no difference", "makes no difference"),
        (ratio(1.005, 1.002, 1.01), "Speculation makes no difference", "makes no difference"),
        (ratio(2.85, 0.71, 12.33), "Whether speculation pays is too close to tell", "too close to tell"),
        (ratio(2.85), "There are too few rounds to tell whether speculation pays", "too few to tell"),
    ],
)
def test_what_is_said_of_an_interval(found: Interval, begins: str, short: str) -> None:
    assert lead(found, ROUNDS) == begins
    assert in_short(found) == short


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0), st.floats(0.1, 10.0))
def test_the_value_changes_no_word(low: float, place: float, width: float) -> None:
    bounds = (low, low + width)
    within = ratio(low + place * width, *bounds)
    assert lead(within, ROUNDS) == lead(ratio(low, *bounds), ROUNDS)
    assert ("pays" in in_short(within)) <= (low > 1.0)
    assert (in_short(within) == "does not pay") <= (low + width < 1.0)


def test_what_would_settle_it() -> None:
    assert settles(ratio(1.5, 1.2, 1.8), ROUNDS) is None
    assert settles(ratio(1.5), Over(num=2, least=6, name="rounds")) == (
        "An interval takes 6 rounds or more; there are 2."
    )
    wide = ratio(1.1, 0.9, 1.3)
    assert settles(wide, ROUNDS) == f"About {more(wide, 6)} more rounds (--num-rounds) would settle it."
    assert (more(wide, 6) or 0) < (more(ratio(1.1, 0.7, 1.7), 6) or 0), "a wider one takes more"
    assert "over 10,000 rounds" in (settles(ratio(1.0, 0.01, 100.0), ROUNDS) or "")
    assert more(ratio(0.0, 0.0, 2.0), 6) is None, "a contender that wrote nothing"


def test_a_ratio_is_never_shown_as_if_it_had_an_interval() -> None:
    assert times(ratio(2.174, 1.77, 2.6)) == "2.17× (1.77 … 2.60)"
    assert times(ratio(2.174)) == "2.17× without an interval"


def test_no_other_module_says_whether_speculation_pays() -> None:
    """A sentence that begins so is a verdict, and a verdict has one home."""
    elsewhere = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path != Path(verdict.__file__)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("Speculation ")
    ]
    assert not elsewhere


@pytest.mark.parametrize(("num_a", "num_b"), [(4, 4), (5, 5), (4, 9), (12, 7), (50, 50), (51, 60)])
def test_rank_sums_are_what_inverting_scipys_test_gives(num_a: int, num_b: int) -> None:
    """A factor lies in the interval exactly when the test does not reject it."""
    draw = np.random.default_rng(num_a)
    a, b = np.exp(draw.normal(0.3, 1.0, num_a)), np.exp(draw.normal(0.0, 1.0, num_b))
    bounds = ratio_bounds(list(a), list(b))
    assert bounds is not None
    exact = max(num_a, num_b) <= 50

    def rejected(factor: float) -> bool:
        method = "exact" if exact else "asymptotic"
        return bool(scipy.stats.mannwhitneyu(a / factor, b, method=method, use_continuity=False).pvalue <= 0.05)

    slack = 1e-9 if exact else 0.01
    assert not rejected(bounds[0] * (1 + slack)) and not rejected(bounds[1] * (1 - slack))
    assert rejected(bounds[0] * (1 - slack)) and rejected(bounds[1] * (1 + slack))


def test_few_values_have_no_interval() -> None:
    assert ratio_bounds([60.0] * (LEAST - 1), [80.0] * 9) is None
    assert ratio_bounds([60.0] * LEAST, [80.0] * LEAST) == (0.75, 0.75)


def test_kinds_of_another_margin() -> None:
    assert kind(ratio(1.1, 1.05, 1.15), margin=0.2) == "equivalent"
    assert kind(ratio(1.1, 1.05, 1.15), margin=0.02) == "faster"
