"""What must be passed before anything is made of a request, around an application that only says what came."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from outpace.server import guard
from outpace.server.guard import Guard
from outpace.server.observing import KEY, Facts

KEYS = (b"first-key", b"second", "ключ".encode())


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body that it was given."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(
    path: str = "/v1/models", headers: dict[str, bytes] | None = None, body: tuple[Message, ...] = (), keys: Any = KEYS
) -> tuple[int, bytes]:
    """Status and body of the answer; a status of 0 is none."""
    given = [(name.encode(), value) for name, value in (headers or {}).items()]
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": given, KEY: Facts("r")}
    messages = iter(body or (part(b""),))
    sent: list[Message] = []

    async def receive() -> Message:
        try:
            return next(messages)
        except StopIteration:
            await asyncio.sleep(60)
            raise AssertionError("nobody waits so long") from None

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Guard(echo, keys, max_body_bytes=100)(scope, receive, send))
    return (sent[0]["status"], sent[1]["body"]) if sent else (0, b"")


def part(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_opens(key: bytes) -> None:
    assert ask(headers={"authorization": b"Bearer " + key}, body=(part(b"hello"),)) == (200, b"hello")
    assert ask(headers={"authorization": b"bearer  " + key})[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer first-ke",
        b"Bearer first-key2",
        b"Basic first-key",
        b"first-key",
        b"\xff\xfe",
    ],
)
def test_nothing_else_does(given: bytes) -> None:
    status, body = ask(headers={"authorization": given})
    assert status == 401 and b"invalid_api_key" in body
    for path in ("/metrics", "/v1/outpace/state", "/openapi.json", "/nothing", "/health/"):
        assert ask(path, headers={"authorization": given})[0] == 401
    for path in ("/health", "/ready"):
        assert ask(path, headers={"authorization": given})[0] == 200


def test_without_keys_everybody_may_ask() -> None:
    assert ask(keys=())[0] == 200


def test_a_body_comes_whole_and_bounded() -> None:
    assert ask(keys=(), body=(part(b"a" * 60, True), part(b"b" * 40))) == (200, b"a" * 60 + b"b" * 40)
    assert ask(keys=(), body=(part(b"a" * 60, True), part(b"b" * 41, True)))[0] == 413
    assert ask(keys=(), headers={"content-length": b"101"})[0] == 413
    assert ask(keys=(), headers={"content-length": b"9" * 5000})[0] == 413


def test_a_client_that_leaves_while_it_sends_gets_nothing() -> None:
    assert ask(keys=(), body=(part(b"a", True), {"type": "http.disconnect"})) == (0, b"")


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)
    assert ask(keys=(), body=(part(b"a", True),))[0] == 408
