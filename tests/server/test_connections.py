"""Connections whose clients neither ask nor take are closed; those whose answer takes long are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.server import connections
from outpace.server.connections import Connection

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
LARGE = 24 << 20
"""Bytes: more than the buffers of both sockets hold."""


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.9)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def given_up(scope: Scope, receive: Receive, send: Send) -> None:
    """As a stream whose time is over."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(LARGE), "more_body": True})


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    config = uvicorn.Config(app, port=0, http=Connection, lifespan="off", log_config=None, timeout_keep_alive=1)
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
                if drips.at_eof():
                    break
            assert drips.at_eof() and idle.at_eof()
            assert (await asks.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.7)
            ask.write(HEAD)  # one that was answered may rest for longer, but not within its next request's head
            began = asyncio.get_running_loop().time()
            assert await asks.read() == b""
            assert asyncio.get_running_loop().time() - began < 0.9
            for writer in (wait, drip, ask):
                writer.close()

    asyncio.run(asyncio.wait_for(work(), 30))


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

    asyncio.run(asyncio.wait_for(work(), 30))


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

    asyncio.run(asyncio.wait_for(work(), 10))
