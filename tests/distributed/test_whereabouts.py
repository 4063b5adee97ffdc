"""Whether a rank gets on, by what its beats say."""

from __future__ import annotations

import pytest

from outpace.engine.ranks import whereabouts
from outpace.engine.ranks.whereabouts import WAITING, Progress, Whereabouts


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(whereabouts.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def still(progress: Progress) -> float:
    """What the first rank makes of the next beat."""
    seen = Whereabouts(progress.beat)
    seen.note(1, progress.beat())
    return seen.still(1)


def test_a_long_load_gets_on_with_every_tensor(clock: Clock) -> None:
    progress = Progress()
    progress.begin("loading")
    for _ in range(5):
        progress.took_a_tensor()
        assert still(progress) == 0.0
        clock.now += 200.0
        assert still(progress) == 200.0
    beat = progress.beat()
    assert (beat.seconds, beat.still, beat.num_tensors) == (1000.0, 200.0, 5)
    progress.begin("allocating")
    assert still(progress) == 0.0


def test_one_that_waits_to_be_told_does_not_hang(clock: Clock) -> None:
    progress = Progress()
    progress.begin(WAITING)
    assert still(progress) == 0.0
    clock.now += 1000.0
    assert still(progress) == 0.0


def test_one_that_was_never_heard_is_not_judged(clock: Clock) -> None:
    assert Whereabouts(Progress().beat).still(1) == 0.0
