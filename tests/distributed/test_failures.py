"""Whether ranks raised alike, as the first one finds out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from outpace.engine.ranks import failures
from outpace.engine.ranks.failures import Failures
from outpace.engine.ranks.orders import Raised


def raised(*place: int) -> Raised:
    return Raised(num_forwards=place[0], num_collectives=place[1], message="it raised")


@pytest.fixture
def impatience(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "SECONDS_TO_AGREE", 0.3)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any test takes: what waits for as long is seen."""
    monkeypatch.setattr(failures, "SECONDS_TO_AGREE", 3600.0)


def test_all_at_one_place_go_on_time_after_time() -> None:
    """The first rank gets further at once, which is not held against the others."""
    place = [(0, 0)]
    found = Failures(2, lambda: place[0], Event())
    with ThreadPoolExecutor(2) as pool:
        for step in range(1, 200):
            place[0] = here = (step, 7 * step)
            weighed = [pool.submit(found.weigh, rank, raised(*here)) for rank in (1, 2)]
            assert found.why_alone() is None
            place[0] = (step, 7 * step + 7)
            assert [future.result() for future in weighed] == [None, None]


@pytest.mark.parametrize("elsewhere", [(3, 6), (3, 8), (2, 7)])
def test_another_place_is_named(elsewhere: tuple[int, int]) -> None:
    ended = Event()
    found = Failures(2, lambda: (3, 7), ended)
    with ThreadPoolExecutor(2) as pool:
        for rank, place in ((1, (3, 7)), (2, elsewhere)):
            pool.submit(found.weigh, rank, raised(*place))
        assert found.why_alone() == "rank 2 raised elsewhere in the forward: it raised"
        ended.set()


@pytest.mark.usefixtures("impatience")
def test_one_that_does_not_raise_is_named() -> None:
    weighed = Event()

    def place() -> tuple[int, int]:
        weighed.set()
        return 3, 7

    found = Failures(2, place, Event())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(found.weigh, 1, raised(3, 7))
        assert weighed.wait(60)
        assert found.why_alone() == "rank 2 had no error there"


@pytest.mark.parametrize("further", [(3, 8), (4, 7)])
def test_a_first_rank_that_is_further_waits_for_nothing(further: tuple[int, int]) -> None:
    assert Failures(1, lambda: further, Event()).weigh(1, raised(3, 7)) == "it raised; rank 0 had no such error there"


@pytest.mark.usefixtures("impatience")
def test_a_first_rank_that_comes_to_no_error_is_not_waited_for_without_end() -> None:
    assert Failures(1, lambda: (3, 7), Event()).weigh(1, raised(3, 7)) == "it raised; rank 0 had no such error there"


def test_a_group_that_has_ended_needs_no_reason() -> None:
    ended = Event()
    ended.set()
    assert Failures(1, lambda: (3, 7), ended).weigh(1, raised(3, 7)) is None
