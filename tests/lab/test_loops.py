from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.lab.loops import MAX_PERIOD, MIN_REPEATED, loops

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
