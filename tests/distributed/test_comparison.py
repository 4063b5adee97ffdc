"""Checksums of ranks are compared whichever comes first, each once."""

from __future__ import annotations

from outpace.engine.ranks.checksum import Comparison


def test_who_comes_after_the_first_rank_is_told_at_once() -> None:
    comparison = Comparison(2)
    assert comparison.add_own(64, 5) == []
    assert not comparison.differs(1, 64, 5)
    assert comparison.differs(2, 64, 6)


def test_who_comes_before_is_told_when_the_first_rank_comes() -> None:
    comparison = Comparison(3)
    assert not any(comparison.differs(rank, 64, checksum) for rank, checksum in ((1, 6), (2, 5), (3, 7)))
    assert comparison.add_own(64, 5) == [1, 3]


def test_what_was_compared_is_kept_no_longer() -> None:
    comparison = Comparison(1)
    comparison.add_own(64, 5)
    assert not comparison.differs(1, 64, 5)
    assert not comparison.differs(1, 64, 6), "nothing is there to compare with"
    assert not comparison.differs(1, 128, 9)
    assert comparison.add_own(128, 8) == [1]
