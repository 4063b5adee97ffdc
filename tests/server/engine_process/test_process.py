"""The engine process's connection: messages, and its end, which is noticed at any time."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from outpace.server.engine_process.process import Inbox
from outpace.server.wire import Abort, AskState, pack
from server.running import SECONDS

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def exited(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set where the process would end."""
    found = Event()
    monkeypatch.setattr(os, "_exit", lambda code: found.set())
    return found


@pytest.fixture
def pair(exited: Event) -> Iterator[Pair]:
    """The engine's end and the other side's; an inbox's thread ends with the latter, before `_exit` is itself again."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            yield ours, theirs
        assert exited.wait(SECONDS)


def test_messages_are_taken_when_they_are_whole(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(ours)
    assert inbox.take() == []
    messages = [AskState(ask=1), Abort(id=2), AskState(ask=3)]
    first, *others = map(pack, messages)
    theirs.sendall(first[:-1])
    assert inbox.wait() == []
    theirs.sendall(first[-1:] + b"".join(others))
    assert inbox.wait() == messages
    assert inbox.take() == []


def test_a_wait_ends_when_it_is_woken(pair: Pair) -> None:
    inbox = Inbox(pair[0])
    waker = Thread(target=inbox.wake)
    waker.start()
    assert inbox.wait() == []
    waker.join()
    pair[1].sendall(pack(AskState(ask=1)))
    assert inbox.wait() == [AskState(ask=1)], "and the next one does not"


def test_the_end_is_noticed_in_the_longest_step(pair: Pair, exited: Event) -> None:
    ours, theirs = pair
    Inbox(ours)
    theirs.sendall(pack(AskState(ask=1)))  # nobody takes it
    assert not exited.wait(0.05)
    theirs.close()
    assert exited.wait(SECONDS)
