"""Stop strings against a search that looks at every character's end."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.models.text.stop_strings import StopStrings

FEW = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=5)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the match that is complete first ends, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return end, max(found, key=len)
    return None


@settings(max_examples=1000, deadline=None)
@given(text=FEW, stops=STOPS, data=st.data())
def test_pieces_joined_are_the_text_before_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    search, shown, position = StopStrings(stops), "", 0
    expected = first_stop(text, stops)
    while position < len(text):
        end = position + data.draw(st.integers(1, 7))
        piece, position = search.push(text[:end], position)
        shown += piece
        if search.matched is not None:
            assert expected == (position, search.matched)
            assert shown == text[: position - len(search.matched)]
            return
        held = text[len(shown) : position]
        assert held == "" or any(stop.startswith(held) for stop in stops)
    assert expected is None
    assert shown + search.finish() == text


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        ("xabcd", ["abcd", "bc"], "xa", "bc"),
        ("xabc", ["c", "abc", "bc"], "x", "abc"),
        ("xabc", ["abc", "ab"], "x", "ab"),
        ("aab", ["ab"], "a", "ab"),
        ("漢字😀x", ["😀"], "漢字", "😀"),
    ],
)
def test_which_one_wins(text: str, stops: list[str], shown: str, matched: str) -> None:
    for order in (stops, stops[::-1]):
        search = StopStrings(order)
        assert search.push(text)[0] == shown
        assert search.matched == matched


def test_after_a_match_the_search_starts_over() -> None:
    search = StopStrings(["--"])
    assert search.push("a-") == ("a", 2)
    assert search.push("-b-") == ("", 1)
    assert search.push("-b-", 1) == ("b", 3)
    assert search.matched is None
    assert search.finish() == "-"
    assert search.finish() == ""


def test_a_match_does_not_count_before_the_search_is_armed() -> None:
    search = StopStrings(["ab"])
    assert search.push("ab", armed=False) == ("", 2)
    assert search.push("cab") == ("abc", 3)
    assert search.matched == "ab"


def test_the_work_for_a_character_is_bounded() -> None:
    """Sixteen long strings that all but match everywhere; a search that starts over would take minutes."""
    search = StopStrings(["a" * 1023 + chr(98 + place) for place in range(16)])
    start = time.process_time()
    shown = sum(len(search.push("a" * 4)[0]) for _ in range(50_000))
    assert shown == 200_000 - 1023
    assert time.process_time() - start < 10
