"""A thread that gets on beats, however long its step takes; one that stands still does not. Looks come when told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Semaphore, Thread
from typing import Any

import pytest

from outpace.server.engine_process import pulse as module
from outpace.server.engine_process.pulse import STALLED_LOOKS, Pulse
from server.running import until


class Looks:
    """Stands for the event that a pulse waits on between two looks."""

    def __init__(self) -> None:
        self._waits, self._told, self._ended = Event(), Semaphore(0), False

    def wait(self, seconds: float) -> bool:
        self._waits.set()
        self._told.acquire()
        return self._ended

    def set(self) -> None:
        self._ended = True
        self._told.release()

    def look(self) -> None:
        """Returns when the look is over."""
        self._waits.wait()
        self._waits.clear()
        self._told.release()
        self._waits.wait()


class Working:
    """A thread in one long step, which goes from one place to the next when told."""

    def __init__(self) -> None:
        self._told, self._moved, self._ended = Semaphore(0), Semaphore(0), False
        self.thread = Thread(target=self._step)
        self.thread.start()

    def move(self) -> None:
        """Returns when it is at another place."""
        self._told.release()
        self._moved.acquire()

    def end(self) -> None:
        self._ended = True
        self._told.release()
        self.thread.join()

    def _step(self) -> None:
        while not self._ended:
            self._told.acquire()
            self._moved.release()
            if not self._ended:
                self._told.acquire()
                self._moved.release()


class Watched:
    """A pulse, a thread that it looks at, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now = 0.0
        self._looks, self._told, self.working = Looks(), list[None](), Working()
        monkeypatch.setattr(module, "Event", lambda: self._looks)
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        assert self.working.thread.ident is not None
        self.pulse = Pulse(self.working.thread.ident, lambda: self._told.append(None), **options)

    def beats(self) -> bool:
        """Whether the next look tells of life."""
        before = len(self._told)
        self._looks.look()
        return len(self._told) > before


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Watched]:
    made = Watched(monkeypatch, **options)
    try:
        yield made
    finally:
        made.pulse.end()
        made.working.end()


def test_a_long_step_that_gets_on_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as step:
        for _ in range(12):
            step.working.move()
            step.now += 100.0
            assert step.beats()


def test_a_thread_that_stands_still_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as step:
        assert step.beats(), "it is where it was not before"
        until(lambda: not step.beats())  # it has come to where it stands
        assert not any(step.beats() for _ in range(12))
        step.working.move()
        assert step.beats()


def test_one_that_waits_for_others_and_watches_them_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank may load for longer than this one: whoever waits for it gives it up if it hangs."""
    with watched(monkeypatch, watching=(Working._step,)) as step:
        assert all(step.beats() for _ in range(12))


def test_one_that_stands_still_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled: list[None] = []
    with watched(monkeypatch, stalled=lambda: stalled.append(None)) as step:
        until(lambda: not step.beats())
        for _ in range(3 * STALLED_LOOKS):
            step.beats()
        assert len(stalled) == 3, "and again after as many looks"
        step.working.move()
        assert step.beats()


def test_a_step_without_an_end_is_no_life(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, longest_step=2.5) as step:
        for step.now, lives in ((1.0, True), (2.0, True), (3.0, False), (4.0, False)):
            step.working.move()
            assert step.beats() is lives
        step.pulse.stepped()
        step.working.move()
        assert step.beats(), "another step has begun"
