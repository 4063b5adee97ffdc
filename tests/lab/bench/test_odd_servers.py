"""Servers that are none, that lie, or that send without end: a sentence each, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from lab.fake_http import listening
from lab.fake_server import FakeServer
from lab.virtual import run
from outpace.errors import ConfigError
from outpace.lab.bench import body
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.run import bench
from outpace.lab.bench.settings import Asking, Load

URL = "http://odd"
MODELS = {"data": [{"id": "m"}]}


class Body(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


@dataclass
class Odd(httpx2.AsyncBaseTransport):
    """What it answers by path; everything else is not found."""

    pages: dict[str, Callable[[], httpx2.Response]] = field(default_factory=dict)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        page = self.pages.get(request.url.path)
        return httpx2.Response(404, text="nothing here") if page is None else page()


def stream(parts: Callable[[], AsyncIterator[bytes]], kind: str = "text/event-stream") -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": kind}, stream=Body(parts()))


def answers(parts: Callable[[], AsyncIterator[bytes]]) -> Odd:
    """A server whose answers are such a stream."""
    return Odd(
        {
            "/v1/models": lambda: httpx2.Response(200, json=MODELS),
            "/v1/chat/completions": lambda: stream(parts),
        }
    )


def event(**parts: Any) -> bytes:
    return f"data: {json.dumps(parts)}\n\n".encode()


def text(words: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": words}, **more}])


def counting(tokens: Any, pieces: int = 4) -> Odd:
    """Its answers have so many pieces, and its usage says so many tokens."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield text("word ")
            await asyncio.sleep(0.01)
        yield text("", finish_reason="length")
        yield event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": tokens})

    return answers(parts)


@pytest.fixture
def workload(tmp_path: Any) -> str:
    path = tmp_path / "asks.jsonl"
    path.write_text("".join(f'"Question {n}?"\n' for n in range(9)))
    return str(path)


def measured(server: Odd, workload: str, **settings: Any) -> BenchRecord:
    async def whole() -> BenchRecord:
        asking = Asking(workload=(workload,), max_tokens=32, timeout_s=60.0, **settings)
        return await bench(Endpoint(URL, transport=server), asking, Load(num_prompts=4), client=dict)

    return run(whole())


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx2.Response(200, html="<html>Welcome to nginx!</html>"), r"\(HTTP 200, text/html\): is it a server"),
        (httpx2.Response(200, json=[1, 2]), r"\(HTTP 200, application/json\)"),
        (httpx2.Response(200, json={"data": [{"id": 7}, 8]}), "lists no model"),
        (httpx2.Response(200, content=b"[" * 100_000), "lists no model"),
        (httpx2.Response(401, json={"error": {"message": "no key"}}), "HTTP 401, no key; put the server's key into"),
        (httpx2.Response(503, text="loading"), "HTTP 503, loading; is the server ready"),
        (httpx2.Response(302, headers={"location": "/login"}), r"\(HTTP 302\); is it the server's own URL"),
    ],
    ids=["html", "a list", "no names", "deep", "key", "loading", "redirect"],
)
def test_what_lists_no_model_is_said_to_be_what_it_is(response: httpx2.Response, message: str, workload: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measured(Odd({"/v1/models": lambda: response}), workload)


def test_https_where_no_tls_is_spoken() -> None:
    async def ask(url: str) -> None:
        endpoint = Endpoint(url)
        try:
            await endpoint.get("/v1/models")
        finally:
            await endpoint.close()

    with listening(FakeServer()) as url, pytest.raises(ConfigError, match=r"SSL.*or is it http://\?$"):
        asyncio.run(ask(url.replace("http:", "https:")))


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx2.Response(200, html="<html>hello</html>"), "no stream: it answers with text/html"),
        (httpx2.Response(200, json={"choices": []}), "no stream: it answers with application/json"),
        (httpx2.Response(502, html="<h1>Bad Gateway</h1>"), "HTTP 502: <h1>Bad Gateway</h1>"),
    ],
    ids=["html", "whole", "gateway"],
)
def test_answers_that_are_no_streams(response: httpx2.Response, message: str, workload: str) -> None:
    pages = {"/v1/models": lambda: httpx2.Response(200, json=MODELS), "/v1/chat/completions": lambda: response}
    with pytest.raises(ConfigError, match=message):
        measured(Odd(pages), workload)


@pytest.mark.parametrize("tokens", [0, -5, 33, 10**9, 10**400, "20", 4.5, [4], True])
def test_counts_that_cannot_be_are_refused_and_never_become_speeds(tokens: Any, workload: str) -> None:
    with pytest.raises(ConfigError, match="wrong usage: it counts"):
        measured(counting(tokens), workload)


def test_counts_that_may_be_too_low_are_noted(workload: str) -> None:
    assert any("more pieces than the server counts tokens" in note for note in measured(counting(2), workload).notes)
    record = measured(counting(4.0), workload)
    assert record.figures.total_tokens == 16, "some write 4.0"
    assert not any("more pieces" in note for note in record.notes)


def test_a_stream_without_end_is_left(workload: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield text("x")

    with pytest.raises(ConfigError, match="endless stream: 529 pieces for 32 tokens at most"):
        measured(answers(endless), workload)


def test_an_event_without_end_takes_no_memory(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MOST_BYTES", 1 << 20)

    async def one_line() -> AsyncIterator[bytes]:
        yield b"data: "
        while True:
            yield b"x" * 65536

    with pytest.raises(ConfigError, match="one event is more than 1 MiB"):
        measured(answers(one_line), workload)


def test_a_page_without_end_takes_neither_memory_nor_time(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MOST_BYTES", 1 << 20)

    async def metrics() -> AsyncIterator[bytes]:
        while True:
            yield b"x_total 1\n" * 1000

    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(1.0)

    models = {"/v1/models": lambda: httpx2.Response(200, json=MODELS)}
    with pytest.raises(ConfigError, match="/metrics sends more than 1 MiB; is it an inference server"):
        measured(Odd(models | {"/metrics": lambda: stream(metrics, "text/plain")}), workload)
    with pytest.raises(ConfigError, match="does not answer within 10 s"):
        measured(Odd({"/v1/models": lambda: stream(dripping, "application/json")}), workload)


def test_events_however_they_are_cut(workload: str) -> None:
    async def cut() -> AsyncIterator[bytes]:
        whole = text("é 漢 ") + text("", finish_reason="stop") + event(choices=[], usage={"completion_tokens": 3})
        for place in range(0, len(whole), 3):
            yield whole[place : place + 3].replace(b"\n", b"\r\n")
        yield b"data: [DONE]"

    assert measured(answers(cut), workload).figures.total_tokens == 12
