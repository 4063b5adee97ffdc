"""Runs a server from its start to its end: the engine's supervisor, HTTP, reports, and the way out.

On SIGTERM or SIGINT nothing new is taken, what runs may finish until `drain_timeout`, and the process ends with 0. A
second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from outpace.server.assembly import assemble
from outpace.server.engine_client.client import EngineClient
from outpace.server.engine_client.jobs import Unavailable
from outpace.server.http.connections import BACKLOG, Connection, reserve_descriptors
from outpace.server.http.listeners import listening
from outpace.server.looking import Looking
from outpace.server.monitoring import logs
from outpace.server.monitoring.reporting import report
from outpace.server.settings import ServerConfig
from outpace.server.wire import Start

KEEP_ALIVE_S = 75
"""An idle connection is kept for longer than clients keep theirs, so that none is closed just as it is used again."""
SWITCH_S = 0.001
"""How long a thread that reads a body or spells a prompt may keep Python's lock from the loop, which tells the streams.
Python's own 5 ms come with every turn of the loop."""
CLOSE_S = 5
"""Between the end of the last answer and that of connections whose clients do not take or send what they should."""


def serve(engine: Start, config: ServerConfig) -> None:
    """Serves until a signal comes.

    Args:
        engine: what to load.
        config: how to serve it.

    Raises:
        CheckpointError: there is no such model, or its tokenizer is broken.
        ConfigError: the engine's settings or the address are wrong, or so many connections cannot be.
        EngineError: the engine died too often.
    """
    reserve_descriptors(config.max_connections)
    with listening(config.host, config.port) as sockets:
        looking = Looking() if config.awake else None
        client, app = assemble(engine, config, looking)
        loop = None if looking is None else partial(asyncio.SelectorEventLoop, looking)
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_Run(client, app, config, sockets).run())


class _Http(uvicorn.Server):
    """uvicorn, which leaves signals to `_Run`: it would hear them only for as long as HTTP lasts.

    Args:
        config: uvicorn's.
        started: called once HTTP answers.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_started = started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell_started()


class _Run:
    def __init__(self, client: EngineClient, app: ASGIApp, config: ServerConfig, sockets: list[socket.socket]) -> None:
        self._client, self._config, self._sockets = client, config, sockets
        self._http = _Http(
            uvicorn.Config(
                app,
                http=Connection,
                limit_concurrency=config.max_connections,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_S,
            ),
            self._tell_listening,
        )
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until HTTP ends, or the engine for good."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        gc.collect()
        gc.freeze()  # what was imported stays: looking through it again would hold all streams up
        sys.setswitchinterval(SWITCH_S)
        http = asyncio.create_task(self._http.serve(self._sockets))
        engine = asyncio.create_task(self._client.run())
        reports = asyncio.create_task(report(self._client, self._config.log_interval))
        try:
            await asyncio.wait({http, engine}, return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                self._http.should_exit = True
                await asyncio.wait({http}, timeout=self._config.drain_timeout)
                engine.result()
            await http
        finally:
            await _ended(reports, engine, http)

    def _tell_listening(self) -> None:
        port = self._sockets[0].getsockname()[1]
        logs.tell("listening", {"host": self._config.host, "port": port, "engine": self._client.status})

    def _stop(self) -> None:
        """The first time, ends when what runs has ended; the second time, at once."""
        if self._stopping is not None:
            self._stopping.cancel()
            self._client.stop()
            self._leave()
            self._http.force_exit = True
            return
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_timeout):
                await self._client.drain()
        self._leave()

    def _leave(self) -> None:
        """Answers that run end, and HTTP with them."""
        self._client.desk.fail_all(Unavailable("the server was shut down before this answer was finished", "draining"))
        self._http.should_exit = True


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancels them and waits until they have ended, whatever with: the first error was raised already."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
