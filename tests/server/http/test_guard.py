"""What must be passed before anything is made of a request, around an application that only says what came."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from outpace.server.http import guard
from outpace.server.http.connections import CROWDED
from outpace.server.http.guard import Guard
from outpace.server.http.observing import KEY, Facts

KEYS = (b"first-key", b"second", "ключ".encode())


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body that it was given."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(
    path: str = "/v1/models",
    headers: dict[str, bytes] | None = None,
    body: tuple[Message, ...] = (),
    keys: Any = KEYS,
    state: dict[str, Any] | None = None,
) -> tuple[int, bytes]:
    """Status and body of the answer; a status of 0 is none."""
    given = [(name.encode(), value) for name, value in (headers or {}).items()]
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": given, KEY: Facts("r")}
    scope["state"] = state or {}
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


def test_a_connection_that_is_one_too_many_is_told_so_unless_it_asks_how_the_server_is() -> None:
    crowded = {CROWDED: True}
    status, body = ask(keys=(), state=crowded)
    assert status == 503 and b"too_many_connections" in body and b"--max-connections" in body
    for path in ("/", "/health", "/ready"):
        assert ask(path, keys=(), state=crowded)[0] == 200


class Bodies:
    """Requests whose bodies come as a test wants."""

    def __init__(self) -> None:
        self.guard = Guard(echo, (), max_body_bytes=1000)

    def begin(self, first: int) -> tuple[asyncio.Task[None], asyncio.Queue[Message], list[Message]]:
        """One that has sent so many bytes: its task, what else it sends, and what it hears."""
        scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": [], KEY: Facts("r")}
        coming: asyncio.Queue[Message] = asyncio.Queue()
        coming.put_nowait(part(b"a" * first, more=True))
        heard: list[Message] = []

        async def send(message: Message) -> None:
            heard.append(message)

        return asyncio.create_task(self.guard(scope, coming.get, send)), coming, heard


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_bodies_that_are_not_there_yet_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ALL_BODIES", 1000)
    monkeypatch.setattr(guard, "SHARE", 50)

    async def work() -> None:
        bodies = Bodies()
        large = [bodies.begin(600) for _ in range(2)]
        small, more, heard = bodies.begin(40)
        await settle()
        assert [bool(said) for _, _, said in large] == [False, True]
        assert large[1][2][0]["status"] == 503 and b"too_many_bodies" in large[1][2][1]["body"]
        more.put_nowait(part(b"b"))
        await small
        assert heard[1]["body"] == b"a" * 40 + b"b", "whoever sends little is not held up"
        large[0][1].put_nowait({"type": "http.disconnect"})
        await large[0][0]
        again, more, heard = bodies.begin(600)
        more.put_nowait(part(b"b" * 300))
        await again
        assert heard[0]["status"] == 200, "what came to nothing is not counted any more"

    asyncio.run(work())


def test_who_was_still_sending_when_the_server_ended_is_told_so() -> None:
    async def work() -> None:
        task, _, heard = Bodies().begin(10)
        await settle()
        task.cancel()
        await task
        assert heard[0]["status"] == 503 and b"shut down before the body came" in heard[1]["body"]

    asyncio.run(work())
