"""Each request is answered in its turn and for itself, whatever else is sent; what is no HTTP is told so, as JSON."""

from __future__ import annotations

import asyncio
import json
import random
import re
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from outpace.server.http import incoming
from outpace.server.http.guard import Guard
from outpace.server.http.observing import KEY, Facts
from server.http.test_connections import is_closed, listening, run

HOST = b"Host: x\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
"""What Java's HTTP client sends with each first request."""


class App:
    """Answers with the path, its body and the names of headers; what lies below `/long` only when it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.left: list[str] = []
        """Paths whose client did not wait for the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[KEY] = Facts("r")
        await Guard(self._answer, (), max_body_bytes=1 << 20)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        names = sorted(name.decode() for name, _ in scope["headers"])
        said = json.dumps({"path": scope["path"], "body": body.decode(), "headers": names})
        if scope["path"].startswith("/long"):
            await send({"type": "http.response.body", "body": b"begun,", "more_body": True})
            gone, ended = asyncio.ensure_future(receive()), asyncio.ensure_future(self.may_end.wait())
            await asyncio.wait((gone, ended), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self.left.append(scope["path"])
            gone.cancel()
            ended.cancel()
        await send({"type": "http.response.body", "body": said.encode()})


async def heard(reader: asyncio.StreamReader, num_answers: int) -> bytes:
    """What comes until so many answers have ended, or the connection has."""
    said = b""
    while said.count(b"0\r\n\r\n") + said.count(b'"}}') < num_answers:
        try:
            part = await reader.read(1 << 16)
        except ConnectionResetError:
            break
        if not part:
            break
        said += part
    return said


def answers(said: bytes) -> list[tuple[int, Any]]:
    """Status and body of each, which are read by the rules, so that nothing may stand between them."""
    found = []
    while said:
        head, _, said = said.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d+) ", head)
        assert status, f"no answer begins with {head[:60]!r}"
        if length := re.search(rb"content-length: (\d+)", head):
            body, said = said[: int(length[1])], said[int(length[1]) :]
        else:
            body = b""
            while not said.startswith(b"0\r\n"):
                size, _, said = said.partition(b"\r\n")
                body, said = body + said[: int(size, 16)], said[int(size, 16) + 2 :]
            said = said[5:]
        found.append((int(status[1]), json.loads(body.removeprefix(b"begun,"))))
    return found


def exchange(*sent: bytes, num_answers: int) -> list[tuple[int, Any]]:
    """What one connection is answered that sends these one after another."""
    found: list[tuple[int, Any]] = []

    async def work() -> None:
        async with listening(App()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in sent:
                writer.write(part)
                await asyncio.sleep(0.01)
            found.extend(answers(await heard(reader, num_answers)))
            writer.close()

    run(work)
    return found


def get(path: str, headers: bytes = HOST, version: str = "1.1") -> bytes:
    return f"GET {path} HTTP/{version}\r\n".encode() + headers + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (get("/a", b""), "0 Host headers"),
        (get("/a", HOST * 2), "2 Host headers"),
        (get("/a", version="2.0"), "version is 2.0"),
        (b"GET /a\r\n\r\n", "version is 0.9"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n" + get("/b"), "CONNECT"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ""),
        (get("a"), ""),
        (get("/\xe9"), ""),
        (get("/a", HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n"), "Content-Length"),
        (get("/a", HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), ""),
        (get("/a", HOST + b"Content-Length: 99999999999999999999\r\n"), "Content-Length"),
        (get("/a", HOST + b"X: a\r\n b\r\n"), ""),
        (get("/a", HOST + b"X : a\r\n"), ""),
        (CHUNKED + b"\r\n-1\r\n", "chunk size"),
        (CHUNKED + b"\r\nfffffffffffffffff\r\n", "hunk size"),
        (CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n", ""),
    ],
)
def test_what_is_no_http_is_told_so_and_nothing_after_it_is_taken(sent: bytes, why: str) -> None:
    ((status, body),) = exchange(sent, get("/b"), num_answers=9)
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert why in body["error"]["message"] and "callback" not in body["error"]["message"]


@pytest.mark.parametrize("wrong", [b"nonsense\r\n\r\n", get("/b", b""), CHUNKED + b"\r\nx", get("/" + "b" * 70_000)])
def test_what_is_wrong_is_told_after_the_answers_before_it(wrong: bytes) -> None:
    found = exchange(get("/a") + get("/b") + wrong + get("/c"), num_answers=9)
    assert [status for status, _ in found] == [200, 200, 400]
    assert [body["path"] for _, body in found[:2]] == ["/a", "/b"]


@pytest.mark.parametrize(
    "wrong", [b"nonsense\r\n\r\n", CHUNKED + b"\r\nx", b"GET /" + bytes(1), b"GET /" + b"b" * 400_000]
)
def test_nothing_is_written_into_an_answer_that_runs(wrong: bytes) -> None:
    async def work() -> None:
        app = App()
        async with listening(app) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/long"))
            said = await reader.readuntil(b"begun,")
            writer.write(wrong)
            await asyncio.sleep(0.1)
            app.may_end.set()
            found = answers(said + await heard(reader, 9))
            assert [status for status, _ in found] == [200, 400] and found[0][1]["path"] == "/long"
            writer.close()

    run(work)


def test_a_body_that_breaks_off_is_told_so_while_it_is_waited_for() -> None:
    found = exchange(CHUNKED + b"\r\n1\r\na\r\n", b"zz\r\n", num_answers=9)
    assert [(status, body["error"]["code"]) for status, body in found] == [(400, "invalid_http")]


def test_what_is_wrong_in_the_body_of_an_answered_request_ends_the_connection() -> None:
    found = exchange(CHUNKED + b"\r\n200000\r\n" + bytes(2 << 20), b"wrong", get("/b"), num_answers=9)
    assert [(status, body["error"]["code"]) for status, body in found] == [(413, "body_too_large")]


@pytest.mark.parametrize(
    "begin",
    [b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", b"GET /", CHUNKED + b"\r\n1;", CHUNKED + b"\r\n0\r\nX-Long: ", b"\r\n"],
    ids=["header", "path", "chunk's extension", "trailer", "before a head"],
)
def test_what_is_kept_of_a_head_is_bounded(begin: bytes) -> None:
    async def work() -> None:
        async with listening(App()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            num_sent = 0
            while not (is_closed(reader) or writer.is_closing()):
                assert num_sent < 8 * incoming.MAX_HEAD_BYTES
                num_sent += 8192
                writer.write((b"\r\n" if begin == b"\r\n" else b"aa") * 4096)
                await asyncio.sleep(0.01)
            assert num_sent > incoming.MAX_HEAD_BYTES
            writer.close()

    run(work)


@pytest.mark.parametrize("num_behind", [incoming.MAX_PIPELINED, incoming.MAX_PIPELINED + 1])
def test_requests_that_wait_for_the_one_before_are_bounded(num_behind: int) -> None:
    found = exchange(b"".join(get(f"/{number}") for number in range(num_behind + 1)), num_answers=num_behind + 1)
    num_taken = min(num_behind, incoming.MAX_PIPELINED) + 1
    assert [body["path"] for _, body in found[:num_taken]] == [f"/{number}" for number in range(num_taken)]
    assert [status for status, _ in found[num_taken:]] == [400] * (num_behind + 1 - num_taken)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 2\r\n\r\nhi", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
)
def test_an_offer_of_another_protocol_is_left_aside(framing: bytes, is_split: bool) -> None:
    """The body is read, and what follows it is the next request, not a part of the other protocol."""
    head, _, body = framing.partition(b"\r\n\r\n")
    begin = b"POST /a HTTP/1.1\r\n" + HOST + H2C + head + b"\r\n\r\n"
    sent = (
        (begin, body, get("/b", HOST + H2C) + get("/c"))
        if is_split
        else (begin + body + get("/b", HOST + H2C) + get("/c"),)
    )
    found = exchange(*sent, num_answers=3)
    assert [(status, body["path"], body["body"]) for status, body in found] == [
        (200, "/a", "hi"),
        (200, "/b", ""),
        (200, "/c", ""),
    ]


def test_an_older_client_that_offers_it_is_still_an_older_client() -> None:
    found = exchange(get("/a", H2C, version="1.0") + get("/b"), num_answers=9)
    assert [(status, body["path"]) for status, body in found] == [(200, "/a")]


def test_trailers_are_no_headers() -> None:
    ((status, body),) = exchange(CHUNKED + b"\r\n0\r\nX-Request-Id: a\r\nContent-Encoding: gzip\r\n\r\n", num_answers=1)
    assert status == 200 and body["headers"] == ["host", "transfer-encoding"]


def test_a_body_that_is_coded_for_its_way_is_refused() -> None:
    sent = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    ((status, body),) = exchange(sent, num_answers=1)
    assert (status, body["error"]["code"]) == (415, "unsupported_encoding")


def test_who_leaves_has_left_all_that_was_asked() -> None:
    async def work() -> None:
        app = App()
        async with listening(app) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/long/1") + get("/long/2"))
            await reader.readuntil(b"begun,")
            writer.close()
            for _ in range(100):
                await asyncio.sleep(0.01)
            assert app.left == ["/long/1"] and not server.server_state.tasks

    run(work)


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.is_closed = b"", False

    def write(self, data: Any) -> None:
        self.said += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """What comes is given by hand."""

    resume_reading = pause_reading


async def told(parts: list[bytes]) -> list[tuple[int, Any]]:
    """What is answered to bytes that come in these parts."""
    config = uvicorn.Config(App(), lifespan="off", log_config=None)
    config.load()
    transport, connection = Written(), incoming.Incoming(config, ServerState(), {})
    connection.connection_made(transport)
    for part in parts:
        if not transport.is_closed:
            connection.data_received(part)
        await asyncio.sleep(0)
    for _ in range(40):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return answers(transport.said)


PIECES = [
    get("/a"),
    get("/b", HOST + H2C),
    b"POST /c HTTP/1.1\r\n" + HOST + H2C + b"Content-Length: 5\r\n\r\nhello",
    CHUNKED + b"\r\n3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n",
    get("/d", version="1.0"),
    get("/e", HOST + b"Connection: close\r\n"),
    get("/f", b""),
    CHUNKED + b"\r\nzz\r\n",
    b"nonsense\r\n\r\n",
    b"\r\n",
]


def test_it_does_not_matter_in_which_parts_bytes_come() -> None:
    chance = random.Random(0)

    async def work() -> None:
        for number in range(400):
            sent = bytearray(b"".join(chance.choices(PIECES, k=chance.randint(1, 5))))
            if number % 2:
                sent[chance.randrange(len(sent))] = chance.choice(b"\r\n :;\x00a0Z/")
            cuts = sorted(chance.choices(range(len(sent)), k=5))
            parts = [bytes(sent[a:b]) for a, b in pairwise([0, *cuts, len(sent)])]
            whole = await told([bytes(sent)])
            assert await told(parts) == whole, bytes(sent)
            assert await told([bytes([byte]) for byte in sent]) == whole, bytes(sent)

    asyncio.run(work())
