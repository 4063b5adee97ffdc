"""A server without a port of its own: for whoever brings HTTP to an ASGI application, as Ray Serve does."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from outpace.errors import EngineError
from outpace.server.assembly import assemble
from outpace.server.engine_client.client import EngineClient
from outpace.server.monitoring.reporting import report
from outpace.server.settings import ServerConfig
from outpace.server.wire import Start


class Replica:
    """One engine in a process of its own, and the application over it. `start` makes one; it ends with this process."""

    def __init__(self, client: EngineClient, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._client = client
        self._running = asyncio.create_task(client.run())
        self._reports = asyncio.create_task(report(client, config.log_interval))

    @classmethod
    async def start(cls, engine: Start, config: ServerConfig) -> Replica:
        """A replica whose engine is ready.

        Args:
            engine: what to load.
            config: how to serve it; where to listen, and how long to drain, is not read.

        Raises:
            ConfigError: the settings or the model are wrong.
            EngineError: the engine died too often before it was ready.
        """
        replica = cls(*assemble(engine, config), config)
        while not replica._client.ready:
            if replica._running.done():
                await replica.end()
                replica._running.result()
            await asyncio.sleep(0.05)
        return replica

    def check_health(self) -> None:
        """Raises EngineError if no engine will come any more; while one is started again it is healthy."""
        if self._running.done():
            raise EngineError(self._client.reason)

    async def end(self) -> None:
        """Ends the engine."""
        for task in (self._reports, self._running):
            task.cancel()
        await asyncio.gather(self._reports, self._running, return_exceptions=True)
