"""The engine process's connection: messages in, messages out, and its end, which is noticed at any time."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from types import SimpleNamespace

import pytest
import torch

from outpace.server import looking
from outpace.server.engine_process import process
from outpace.server.engine_process.process import Inbox, Outbox
from outpace.server.wire import Abort, Accepted, AskState, Frames, FromEngine, Lost, Piece, Start, Tally, ToEngine, pack
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
    """The engine's end and the other side's. An inbox's thread ends with the latter, before `_exit` is itself again: it
    would end the tests."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            yield ours, theirs
        for thread in enumerate_threads():
            if thread.name == "inbox":
                thread.join(SECONDS)
                assert not thread.is_alive()
        assert exited.is_set()


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


def test_a_wait_looks_before_it_sleeps(pair: Pair) -> None:
    """With a clock of looks: it looks as long as it is told, and what comes meanwhile ends it."""
    ours, theirs = pair
    inbox = Inbox(ours)
    looks: list[int | None] = []
    descriptors = select.poll()
    descriptors.register(ours, select.POLLIN)

    def poll(milliseconds: int | None = None) -> list[tuple[int, int]]:
        looks.append(milliseconds)
        if milliseconds is None or len(looks) == 50:
            theirs.sendall(pack(AskState(ask=1)))
        return descriptors.poll(milliseconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inbox, "_there", SimpleNamespace(poll=poll))
        patched.setattr(looking, "monotonic", lambda: float(len(looks)))
        assert inbox.wait() == [AskState(ask=1)] and looks == [0, None], "it sleeps at once"
        looks.clear()
        assert inbox.wait(10.0) == [AskState(ask=1)] and looks == [0] * 10 + [None]
        looks.clear()
        assert inbox.wait(100.0) == [AskState(ask=1)] and looks == [0] * 50


def test_a_wait_ends_when_it_is_woken(pair: Pair) -> None:
    inbox = Inbox(pair[0])
    waker = Thread(target=inbox.wake)
    waker.start()
    assert inbox.wait() == []
    waker.join()
    pair[1].sendall(pack(AskState(ask=1)))
    assert inbox.wait() == [AskState(ask=1)], "and the next one does not"


class Idle:
    """An engine on some device, as far as `serve` knows it, with one step to do."""

    def __init__(self, device: str) -> None:
        self.device, self.ranks = torch.device(device), None
        self.engine = SimpleNamespace(grammars=SimpleNamespace(guard=lambda: None, warm=lambda: None))
        self.busy = True

    def describe(self) -> dict[str, object]:
        return {}

    def handle(self, messages: list[ToEngine]) -> None:
        pass

    def step(self) -> None:
        self.busy = False


class Waits:
    """An inbox where nothing comes: how long each wait would have looked, by a clock that stands at 100."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.looked: list[float] = []

    def take(self) -> list[ToEngine]:
        return []

    def wait(self, looking_until: float = 0.0) -> list[ToEngine]:
        self.looked.append(looking_until)
        if len(self.looked) == 1:
            return [self.start]
        raise EOFError


@pytest.mark.parametrize(("device", "until"), [("cuda", 107.0), ("cpu", 100.0)])
def test_only_beside_a_gpu_it_looks(device: str, until: float, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's cores have a model to run: the next request's, too."""
    idle = Idle(device)
    pulse = SimpleNamespace(end=lambda: None, stepped=lambda: None)
    for name, stub in (("LLM", idle), ("Serving", idle), ("Pulse", pulse), ("machine", {})):
        monkeypatch.setattr(process, name, lambda *_, made=stub, **__: made)
    monkeypatch.setattr(process, "gc", SimpleNamespace(collect=lambda: 0, freeze=lambda: None))
    monkeypatch.setattr(process, "monotonic", lambda: 100.0)
    waits = Waits(Start(model="m", drafter=None, dtype="auto", device=device, aux_boundaries=None, options={}, awake=7))
    with pytest.raises(EOFError):
        process.serve(waits, Outbox(pair[0]))  # type: ignore[arg-type]
    assert waits.looked == [0.0, until]
    Inbox(pair[0])  # which ends with the pair


def test_the_end_is_noticed_in_the_longest_step(pair: Pair, exited: Event) -> None:
    ours, theirs = pair
    Inbox(ours)
    theirs.sendall(pack(AskState(ask=1)))  # nobody takes it
    assert not exited.wait(0.05)
    theirs.close()
    assert exited.wait(SECONDS)


def test_who_is_told_of_an_answers_begin_goes_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both share a core, the step that follows would hold up what was just sent."""
    ours, theirs = pair
    Inbox(ours)
    frames: Frames[FromEngine] = Frames(FromEngine)
    gave_way: list[list[FromEngine]] = []

    def heard() -> list[FromEngine]:
        return list(frames.feed(theirs.recv(1 << 16)))

    monkeypatch.setattr(os, "sched_yield", lambda: gave_way.append(heard()))
    outbox = Outbox(ours)
    outbox.flush()
    begins = [Accepted(id=1), Accepted(id=2)]
    outbox.put(begins[0])
    assert gave_way == []
    outbox.send(begins[1])
    outbox.send(first := piece(first_s=0.1))
    assert gave_way == [begins, [first]]
    outbox.send(later := piece(first_s=None))
    outbox.flush()
    assert heard() == [later] and len(gave_way) == 2


def piece(first_s: float | None) -> Piece:
    return Piece(id=1, text="a", token_ids=(3,), finish_reason=None, tally=Tally(), first_s=first_s)


def test_a_server_that_was_killed_is_no_error_of_ours(pair: Pair, exited: Event) -> None:
    """It had not read what it was sent, so the kernel calls that a reset."""
    ours, theirs = pair
    inbox = Inbox(ours)
    ours.sendall(b"unread")
    theirs.close()
    assert inbox.wait() == []
    assert exited.is_set()


def test_a_connection_that_breaks_elsewhere_is_an_error_that_is_told(
    pair: Pair, exited: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ConnectionResetError("of a library's")

    monkeypatch.setattr(process, "serve", broken)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    ours, theirs = pair
    monkeypatch.setattr(socket, "socket", lambda fileno: ours)
    with pytest.raises(ConnectionResetError):
        process.main(ours.fileno())
    (lost,) = Frames[FromEngine](FromEngine).feed(theirs.recv(1 << 16))
    assert isinstance(lost, Lost) and "of a library's" in lost.message


def test_who_has_nobody_to_tell_ends(pair: Pair, exited: Event) -> None:
    ours, theirs = pair
    outbox = Outbox(ours)
    theirs.close()
    outbox.send(Accepted(id=1))
    assert exited.is_set()
