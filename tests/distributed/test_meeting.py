"""Ranks that torchrun started find each other, and nobody else gets in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from outpace.distributed import handshake, meeting
from outpace.distributed.handshake import KEY, Stranger, admit, introduce, ranks_key
from outpace.distributed.launcher import NAMES, Launched, environment, launched
from outpace.distributed.meeting import meet_first, meet_others
from outpace.distributed.pipe import Pipe, PipeClosed
from outpace.engine.ranks import orders
from outpace.errors import ConfigError, EngineError
from server.running import reserved_port

SECRET = b"a key of the ranks"
PATIENCE = 60.0
"""Seconds for what takes none."""


def rank_of(rank: int, size: int = 3) -> Launched:
    return Launched(rank, rank, size, size, "localhost")


@contextmanager
def listening(size: int, seconds: float = PATIENCE) -> Iterator[tuple[dist.HashStore, Future[list[socket.socket]]]]:
    """The first of so many ranks, waiting for the others."""
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        yield store, pool.submit(meet_others, store, rank_of(0, size), SECRET, seconds)


def port_of(store: dist.HashStore) -> int:
    store.wait(["outpace/first"], timedelta(seconds=PATIENCE))
    return int(store.get("outpace/first"))


def test_ranks_come_in_any_order_and_are_known_by_number() -> None:
    with listening(3) as (store, met), ThreadPoolExecutor(2) as pool:
        theirs = dict(zip((2, 1), pool.map(lambda rank: meet_first(store, rank_of(rank), SECRET), (2, 1)), strict=True))
        ours = dict(enumerate(met.result(), start=1))
        for rank, connection in ours.items():
            connection.sendall(bytes([rank]))
            assert theirs[rank].recv(1) == bytes([rank])
            assert connection.getsockname()[0] == "127.0.0.1", "one machine's ranks listen to that machine alone"
        for connection in (*ours.values(), *theirs.values()):
            connection.close()


def wrong_key(connection: socket.socket) -> None:
    with pytest.raises(Stranger):
        introduce(connection, 1, b"another key of ranks", PATIENCE)


def replayed(connection: socket.socket) -> None:
    """What a rank said on another connection."""
    connection.sendall(b"\0\0\0\1" + b"n" * 32 + handshake._proof(SECRET, b"other", b"\0\0\0\1", b"f" * 32, b"n" * 32))


def not_awaited(connection: socket.socket) -> None:
    introduce(connection, 7, SECRET, PATIENCE)


STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "says nothing": lambda _: None,
    "speaks HTTP": lambda connection: connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9),
    "hangs up": lambda connection: connection.close(),
    "another key": wrong_key,
    "a replay": replayed,
    "rank 7 of 2": not_awaited,
}


@pytest.mark.parametrize("does", STRANGERS.values(), ids=STRANGERS.keys())
def test_strangers_are_turned_away_and_ranks_still_get_in(
    does: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = iter([0.5] if does is STRANGERS["says nothing"] else [])
    monkeypatch.setattr(meeting, "admit", lambda connection, key: admit(connection, key, next(limits, PATIENCE)))
    with listening(2) as (store, met), socket.create_connection(("127.0.0.1", port_of(store))) as stranger:
        does(stranger)
        rank = meet_first(store, rank_of(1, 2), SECRET)
        (connection,) = met.result()
        connection.sendall(b"!")
        assert rank.recv(1) == b"!"
        for end in (connection, rank):
            end.close()


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over once a stranger has come behind the rank that did."""
    now = [0.0]
    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with listening(3) as (store, met):
        came = meet_first(store, rank_of(2), SECRET)
        now[0] = PATIENCE + 1.0
        with socket.create_connection(("127.0.0.1", port_of(store))) as stranger:
            stranger.sendall(b"\0" * 68)
            with pytest.raises(EngineError, match=r"rank 1 of torchrun's did not come within 60 s; .*its OUTPACE"):
                met.result()
        came.close()


def pretend(server: socket.socket) -> None:
    """Takes whoever comes for a rank, and proves nothing."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"x" * 64)
        connection.recv(68)


def test_a_rank_says_who_it_is_when_the_first_cannot_be_found_or_is_none() -> None:
    store = dist.HashStore()
    with pytest.raises(EngineError, match=r"rank 1 of torchrun's does not know where rank 0 listens, after 0.2 s"):
        meet_first(store, rank_of(1), SECRET, seconds=0.2)
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor(1) as pool:
        port = impostor.getsockname()[1]
        store.set("outpace/first", str(port))
        pretending = pool.submit(pretend, impostor)
        with pytest.raises(EngineError, match=rf"rank 1 .* rank 0 at 127.0.0.1 port {port} do not share a key"):
            meet_first(store, rank_of(1), SECRET, seconds=PATIENCE)
        pretending.result()
        with pytest.raises(EngineError, match=r"do not share a key: timed out"):
            meet_first(store, rank_of(1), SECRET, seconds=0.5)
    with reserved_port() as port:
        store.set("outpace/first", str(port))
        with pytest.raises(EngineError, match=rf"rank 1 of torchrun's cannot reach rank 0 at 127.0.0.1 port {port}"):
            meet_first(store, rank_of(1), SECRET, seconds=PATIENCE)


def test_there_must_be_a_key_and_it_must_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match=r"OUTPACE_RANKS_KEY is not set; .*openssl rand -hex 32"):
        ranks_key()
    monkeypatch.setenv(KEY, "short")
    with pytest.raises(ConfigError, match=r"OUTPACE_RANKS_KEY has 5 bytes; .*16 bytes or more"):
        ranks_key()
    monkeypatch.setenv(KEY, SECRET.decode())
    assert ranks_key() == SECRET
    monkeypatch.setenv(KEY, "sixteen bytes \udce9\udce9")
    assert ranks_key() == b"sixteen bytes \xe9\xe9"


def test_a_side_that_falls_silent_is_gone() -> None:
    ours, theirs = socket.socketpair()
    pipe: Pipe[orders.Beat] = Pipe(ours, orders.Beat, silence=0.2)
    other: Pipe[orders.Beat] = Pipe(theirs, orders.Beat)
    other.send(orders.Beat())
    assert pipe.receive() == orders.Beat()
    with pytest.raises(PipeClosed, match=r"no sign of life for 0.2 s"):
        pipe.receive()
    with pytest.raises(PipeClosed, match=r"took no message for 0.2 s"):
        pipe.send(orders.Failed(message="x" * 10_000_000))
    for end in (pipe, other):
        end.close()


def test_a_rank_of_which_half_is_told_is_not_taken_for_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is would start ranks, which would start ranks."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert launched() is None, "clusters set that for everybody"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="not LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT: start ranks with torchrun"):
        launched()


def test_a_rank_knows_that_it_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that starts ranks, each of which thinks that it is to start them, fills the machine."""
    for name, value in environment(1, 3, 99).items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(1, 1, 3, 3, "127.0.0.1")
