"""Loops: anywhere in an answer, as measuring asks, and at its end, where training cuts them."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.lab.workload.loops import MAX_PERIOD, loops
from outpace.loops import MIN_REPEATED, final_period, trim_loop
from outpace.training.answers import MAX_LOOP_PERIOD

START = list(range(1000, 1040))


@pytest.mark.parametrize("period", [1, 2, 5, 12, 13, 40, MAX_PERIOD])
def test_a_block_three_times_is_a_loop_if_it_is_long_enough(period: int) -> None:
    block = list(range(period))
    assert loops(START + block * max(3, 1 + -(-MIN_REPEATED // period)))
    assert not loops(START + block * 2 + START)


def test_it_is_found_in_the_middle_too() -> None:
    assert loops(START + [1, 2, 3] * 12 + START)


@pytest.mark.parametrize("text", [[], [1], [7] * MIN_REPEATED, [1, 2] * 10, START])
def test_short_repetitions_are_text(text: list[int]) -> None:
    assert not loops(text)


def test_a_numbered_list_is_not_a_loop() -> None:
    words = random.Random(0)
    assert not loops([token for row in range(30) for token in (500, row, 501, *words.choices(range(400), k=4))])


@given(st.lists(st.integers(0, 3), max_size=120))
def test_against_the_definition_word_for_word(tokens: list[int]) -> None:
    def looped_at(begin: int, period: int) -> bool:
        needed = max(2 * period, MIN_REPEATED)
        if begin + period + needed > len(tokens):
            return False
        return all(tokens[i] == tokens[i - period] for i in range(begin + period, begin + period + needed))

    expected = any(looped_at(b, p) for p in range(1, MAX_PERIOD + 1) for b in range(len(tokens)))
    assert loops(tokens) == expected


def test_measuring_and_training_ask_for_different_loops() -> None:
    paragraph = list(range(100))
    assert final_period(np.array(START + paragraph * 3), max_period=MAX_LOOP_PERIOD) == 100
    assert not loops(START + paragraph * 3), "a repeated paragraph is as hard to draft as another"
    assert final_period(np.array(START + [1, 2, 3] * 12 + START), max_period=MAX_LOOP_PERIOD) is None
    assert loops(START + [1, 2, 3] * 12 + START), "training keeps what comes after"


@given(st.integers(1, 40), st.integers(0, 60), st.integers(3, 30), st.integers(0, 39))
def test_loops_are_cut_after_two_blocks(period: int, num_before: int, repeats: int, extra: int) -> None:
    rng = np.random.default_rng(period * 1000 + num_before)
    block = np.arange(100, 100 + period)
    before = rng.integers(1000, 100_000, num_before)
    tokens = np.concatenate([before, np.tile(block, repeats), block[: extra % period]])
    looped = (repeats - 1) * period + extra % period >= max(2 * period, MIN_REPEATED)
    assert final_period(tokens, max_period=MAX_LOOP_PERIOD) == (period if looped else None)
    cut = trim_loop(tokens, max_period=MAX_LOOP_PERIOD)
    assert len(cut) == (num_before + 2 * period if looped else len(tokens))


def test_ordinary_text_is_no_loop() -> None:
    tokens = np.array(json.loads("[" + ",".join(str(i * i % 97) for i in range(96)) + "]"))
    assert final_period(tokens, max_period=MAX_LOOP_PERIOD) is None
