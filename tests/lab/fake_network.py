"""Fake servers at URLs that no network knows, on a clock that jumps: whole commands whose figures are exact.

Nor is this machine looked at, which may be throttled just now; two servers as they are told to be is what is compared.
"""

from __future__ import annotations

import asyncio
from functools import partial

import httpx2
import pytest

from lab import virtual
from lab.fake_server import FakeServer
from outpace.cli import bench, compare
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.paired import trial
from outpace.lab.paired.guard import State


class _Network(httpx2.AsyncBaseTransport):
    def __init__(self, servers: dict[str, FakeServer]) -> None:
        self._servers = servers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        server = self._servers.get(request.url.host)
        if server is None:
            raise httpx2.ConnectError("nobody is there", request=request)
        return await server.handle_async_request(request)


def simulate(monkeypatch: pytest.MonkeyPatch, **servers: FakeServer) -> list[str]:
    """Puts servers where commands find them by name; their URLs."""
    network = _Network(servers)
    for module in (bench, compare):
        monkeypatch.setattr(module, "Endpoint", partial(Endpoint, transport=network))
    monkeypatch.setattr(compare, "compare", partial(trial.compare, state=State))
    monkeypatch.setattr(asyncio, "run", virtual.run)
    return [f"http://{name}" for name in servers]
