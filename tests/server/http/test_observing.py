"""Which requests have a log line, and that each has one place in the metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from outpace.server.http import observing
from outpace.server.http.observing import ANSWERED, QUIET, Observing
from outpace.server.monitoring.recent import Recent


class Counting:
    """Metrics that only note what they are told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def note_request(self, path: str, status: int, seconds: float, first_token: float | None) -> None:
        self.told.append((path, status))


def asked(
    path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """The log lines and the counts of one request that ends with this status; 0 is no answer at all."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(observing, "tell", lambda event, facts: lines.append({"event": event} | facts))
    counting = Counting()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        assert dict(message["headers"])[b"x-request-id"]

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(Observing(answer, counting, Recent(), frozenset({*QUIET, *ANSWERED}))(scope, receive, send))
    return lines, counting.told


@pytest.mark.parametrize("path", QUIET)
@pytest.mark.parametrize(("status", "logged"), [(200, False), (503, False), (401, True), (408, True), (500, True)])
def test_what_machines_ask_is_logged_if_it_is_refused_or_fails(
    path: str, status: int, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, told = asked(path, status, monkeypatch)
    assert [(line["path"], line["status"]) for line in lines] == ([(path, status)] if logged else [])
    assert told == [(path, status)]


@pytest.mark.parametrize("path", [*ANSWERED, "/v1/models", "/nowhere"])
@pytest.mark.parametrize("status", [200, 404, 503, 0])
def test_everything_else_has_one_line(path: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, told = asked(path, status, monkeypatch)
    (line,) = lines
    assert (line["event"], line["method"], line["path"], line["status"]) == ("request", "GET", path, status)
    assert told == [(path if path in ANSWERED else "other", status)]
