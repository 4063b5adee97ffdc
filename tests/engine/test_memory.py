"""How many pages fit, and what is said where they do not."""

from __future__ import annotations

import pytest

from outpace import ConfigError, EngineError
from outpace.engine.memory import check_pages, num_pages


def test_pages_take_their_fraction_and_no_more_than_all_rows_can_use() -> None:
    assert num_pages(free=1000, fraction=0.5, page_bytes=10, pages_per_row=8, max_rows=16) == 50
    assert num_pages(free=1000, fraction=0.5, page_bytes=10, pages_per_row=8, max_rows=2) == 17, "and the trash page"


def test_one_full_context_and_the_trash_page_must_fit() -> None:
    assert num_pages(free=90, fraction=1.0, page_bytes=10, pages_per_row=8, max_rows=1) == 9
    with pytest.raises(EngineError, match=r"holds 8 KV pages; one full context needs 9, .* lower max_context"):
        num_pages(free=89, fraction=1.0, page_bytes=10, pages_per_row=8, max_rows=1)


def test_pages_that_are_asked_for_must_be_free() -> None:
    assert check_pages(9, page_bytes=10, free=90) == 9
    with pytest.raises(ConfigError, match="give at most 9, or leave it out"):
        check_pages(10, page_bytes=10, free=99)
