"""An event loop that looks for what comes instead of sleeping."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from outpace.server import looking as looking_
from outpace.server.looking import Looking


class Counted(Looking):
    """One whose looks and sleeps are counted: what the system's own selector is asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float | None] = []


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    selector = Counted()
    own = selectors.DefaultSelector.select

    def select(self: Counted, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.asked.append(timeout)
        return own(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    monkeypatch.setattr(looking_, "monotonic", lambda: float(len(selector.asked)))
    yield selector
    selector.close()


def test_it_sleeps_until_it_is_woken_and_when_it_may_rest(counted: Counted) -> None:
    counted.select(0.001)
    counted.wake()
    counted.select(5)
    counted.rest()
    counted.select(0.001)
    assert counted.asked == [0.001, *[0] * 5, 0.001], "a look is a second by this clock"


def test_it_looks_once_where_nobody_waits(counted: Counted) -> None:
    counted.wake()
    assert counted.select(0) == counted.select(-1) == []
    assert counted.asked == [0, -1]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_what_comes_ends_it(timeout: float | None, counted: Counted) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        counted.register(ours, selectors.EVENT_READ)
        counted.wake()
        theirs.send(b"x")
        ((key, _),) = counted.select(timeout)
        assert key.fileobj is ours and counted.asked == [0]


def test_a_loop_runs_on_it() -> None:
    """Timers, other threads and sockets end its looks."""

    async def run() -> tuple[str, bytes]:
        looking.wake()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, theirs.send, b"x")
            return await asyncio.to_thread(str, 1), await loop.sock_recv(ours, 1)

    looking = Looking()
    with asyncio.Runner(loop_factory=partial(asyncio.SelectorEventLoop, looking)) as runner:
        assert runner.run(run()) == ("1", b"x")
