"""Connections that ask nothing are closed; those whose answer takes long are not."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from outpace.server import connections
from outpace.server.connections import Connection

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.9)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_a_connection_that_does_not_ask_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.4)

    async def work() -> None:
        config = uvicorn.Config(slow, port=0, http=Connection, lifespan="off", log_config=None, timeout_keep_alive=60)
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        (idle, wait), (drips, drip), (asks, ask) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        ask.write(HEAD + b"\r\n")
        for byte in HEAD * 2:
            drip.write(bytes([byte]))
            await asyncio.sleep(0.02)
            if drips.at_eof():
                break
        assert drips.at_eof() and idle.at_eof()
        assert (await asks.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        ask.write(HEAD + b"\r\n")  # it had asked before, and has its time once more
        assert (await asks.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert await asks.read() == b"", "then it is as idle as the others"
        for writer in (wait, drip, ask):
            writer.close()
        server.should_exit = True
        await server.shutdown()

    asyncio.run(asyncio.wait_for(work(), 30))
