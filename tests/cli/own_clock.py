"""`outpace compare` against servers without a socket, on a clock of our own: a busy machine changes no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lab.fake_server import FakeServer
from lab.virtual import run
from outpace.cli import compare
from outpace.lab.bench.endpoint import Endpoint


def on_own_clock(monkeypatch: pytest.MonkeyPatch, servers: Mapping[str, FakeServer]) -> None:
    """From now on these URLs are these servers."""

    def endpoint(url: str, **settings: Any) -> Endpoint:
        return Endpoint(url, transport=servers[url], **settings)

    monkeypatch.setattr(compare, "Endpoint", endpoint)
    monkeypatch.setattr(compare, "asyncio", SimpleNamespace(run=run))
