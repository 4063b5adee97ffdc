"""A fake server behind a real socket, in a thread with a loop of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx2
import uvicorn

from lab.fake_server import FakeServer
from server.running import until


class _App:
    """Hands requests to a `FakeServer`."""

    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = httpx2.Request(scope["method"], f"http://fake{scope['path']}", content=body)
        response = await self._fake.handle_async_request(request)
        headers = [(b"content-type", response.headers.get("content-type", "text/event-stream").encode())]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        async for part in response.stream:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def listening(fake: FakeServer) -> Iterator[str]:
    """Its URL."""
    config = uvicorn.Config(_App(fake), host="127.0.0.1", port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
