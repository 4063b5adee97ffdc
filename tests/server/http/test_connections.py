"""Connections whose clients neither ask nor take are closed; those whose answer takes long are not.

Sockets are real and time is not: the clock stands still while anything comes, however long the machine takes for it.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from lab import virtual
from outpace.errors import ConfigError
from outpace.server.http import connections
from outpace.server.http.connections import CROWDED, Connection, reserve_descriptors

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
LARGE = 24 << 20
"""Bytes: more than the buffers of both sockets hold."""
GRACE = 0.05
"""Seconds for the kernel to bring what is on its way between two sockets of this machine."""


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual.run(asyncio.wait_for(work(), 100), GRACE)


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.9)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def held(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers `/held` when its body has come, and says of others whether they are one too many."""
    while scope["path"] == "/held" and (await receive())["more_body"]:
        pass
    body = b"crowded" if CROWDED in scope["state"] else b"welcome"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": body})


async def given_up(scope: Scope, receive: Receive, send: Send) -> None:
    """As a stream whose time is over."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(LARGE), "more_body": True})


def is_closed(reader: asyncio.StreamReader) -> bool:
    """By the other side, which resets a connection that was written to after that."""
    return reader.at_eof() or isinstance(reader.exception(), ConnectionResetError)


@asynccontextmanager
async def listening(app: ASGIApp, most: int | None = None) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    config = uvicorn.Config(
        app, port=0, http=Connection, lifespan="off", log_config=None, timeout_keep_alive=60, limit_concurrency=most
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    yield server, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await server.shutdown()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.4)


def test_a_connection_that_does_not_ask_in_time_is_closed() -> None:
    async def work() -> None:
        async with listening(slow) as (_, port):
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            (idle, wait), (drips, drip), (asks, ask) = opened
            ask.write(HEAD + b"\r\n")
            for byte in HEAD * 2:
                drip.write(bytes([byte]))
                await asyncio.sleep(0.02)
                if is_closed(drips):
                    break
            assert is_closed(drips) and await idle.read() == b""
            assert (await asks.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.7)
            ask.write(HEAD)  # one that was answered may rest for longer, but not within its next request's head
            assert await asks.read() == b""
            for writer in (wait, drip, ask):
                writer.close()

    run(work)


def test_an_answer_may_take_its_client_longer_than_a_head() -> None:
    async def work() -> None:
        async with listening(large) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            num_taken = 0
            while num_taken < LARGE:
                taken = await reader.read(LARGE // 16)
                assert taken, f"cut after {num_taken} bytes"
                num_taken += len(taken)
                await asyncio.sleep(0.08 * len(taken) / (LARGE // 16))
            writer.close()

    run(work)


@pytest.mark.parametrize("app", [large, given_up])
def test_who_takes_nothing_of_an_answer_is_closed(app: ASGIApp) -> None:
    async def work() -> None:
        async with listening(app) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(HEAD + b"\r\n")
                while not server.server_state.connections:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.05)

    run(work)


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def said(pair: Pair, path: str) -> bytes:
    """The body of an answer, which has seven bytes; nothing if the connection was closed."""
    reader, writer = pair
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    try:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(7)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    await asyncio.sleep(0.01)  # no two begin to rest at the same time
    return body


async def holds(port: int, server: uvicorn.Server) -> Pair:
    """A connection that sends a body, and so is being answered."""
    before = len(server.server_state.tasks)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
    while len(server.server_state.tasks) == before:
        await asyncio.sleep(0.01)
    return reader, writer


def test_one_too_many_takes_the_place_of_the_one_that_rested_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 30.0)

    async def work() -> None:
        async with listening(held, most=3) as (server, port):
            busy = await holds(port, server)
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            assert await said(second, "/") == await said(first, "/") == b"welcome"
            third = await asyncio.open_connection("127.0.0.1", port)
            assert await said(third, "/") == b"welcome"
            assert await second[0].read() == b"", "it had rested for longer than the first"
            assert await said(first, "/") == b"welcome"
            busy[1].write(b"b")
            assert (await busy[0].readuntil(b"welcome")).startswith(b"HTTP/1.1 200")
            for _, writer in (busy, first, second, third):
                writer.close()

    run(work)


def test_where_none_rests_a_few_are_heard_and_the_others_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 30.0)
    monkeypatch.setattr(connections, "SPARE", 1)

    async def work() -> None:
        async with listening(held, most=2) as (server, port):
            busy = [await holds(port, server) for _ in range(2)]
            late = await asyncio.open_connection("127.0.0.1", port)
            assert await said(late, "/") == b"crowded"
            later = await asyncio.open_connection("127.0.0.1", port)
            assert await said(later, "/") == b"crowded"
            assert await late[0].read() == b"", "it rested"
            later[1].write(b"POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
            while len(server.server_state.tasks) < 3:
                await asyncio.sleep(0.01)
            last = await asyncio.open_connection("127.0.0.1", port)
            assert await said(last, "/") == b""
            busy[0][1].write(b"b")
            assert await busy[0][0].readuntil(b"welcome")
            again = await asyncio.open_connection("127.0.0.1", port)
            assert await said(again, "/") == b"crowded", "the one that rests has gone, and one is still too many"
            for _, writer in (*busy, late, later, last, again):
                writer.close()

    run(work)


def test_files_are_made_room_for_or_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    most = connections.SPARE + connections.BACKLOG + connections.OTHER_FILES
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, most + 100))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: limits.append(wanted))
    reserve_descriptors(100)
    assert limits == [(most + 100, most + 100)]
    with pytest.raises(ConfigError, match=r"max_connections is 101, .* its limit is .* at most 100"):
        reserve_descriptors(101)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    with pytest.raises(ConfigError, match=r"its limit is 64: raise that one \(ulimit -n\)$"):
        reserve_descriptors(1)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    reserve_descriptors(1 << 20)
    assert len(limits) == 1
