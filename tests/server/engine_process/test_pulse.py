"""A thread that gets on beats, however long its step takes; one that stands still does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import sleep

from outpace.server.engine_process.pulse import PERIOD, Pulse

LONG = 12 * PERIOD


@contextmanager
def working(work: Callable[[Event], None]) -> Iterator[int]:
    """A thread that works until the block is left; its id."""
    ended = Event()
    thread = Thread(target=work, args=(ended,))
    thread.start()
    assert thread.ident is not None
    yield thread.ident
    ended.set()
    thread.join()


def layers(ended: Event) -> None:
    """One long step that goes on from call to call."""
    while not ended.is_set():
        for call in (sleep, lambda seconds: sleep(seconds), lambda seconds: ended.wait(seconds)):
            call(0.6 * PERIOD)


def stands(ended: Event) -> None:
    ended.wait()


def beats(thread_id: int, **options: float) -> list[None]:
    told: list[None] = []
    pulse = Pulse(thread_id, lambda: told.append(None), **options)
    sleep(LONG)
    pulse.end()
    return told


def test_a_long_step_that_gets_on_beats() -> None:
    with working(layers) as thread_id:
        assert len(beats(thread_id)) >= 3


def test_a_thread_that_stands_still_does_not() -> None:
    with working(stands) as thread_id:
        assert len(beats(thread_id)) <= 1  # that it is where it was not before


def test_one_that_stands_still_is_told_of() -> None:
    told = Event()
    with working(stands) as thread_id:
        pulse = Pulse(thread_id, lambda: None, stalled=told.set)
        assert told.wait(60)
        pulse.end()


def test_a_step_without_an_end_is_no_life() -> None:
    with working(layers) as thread_id:
        assert len(beats(thread_id, longest_step=2.5 * PERIOD)) <= 2
