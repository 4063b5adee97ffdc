"""A server as its users start it: a process of its own on a free port, with its log at hand."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2 as httpx
import openai

SECONDS = 120.0
"""More than anything takes that must come, on a busy machine too."""


class Server:
    """A running `outpace serve`."""

    def __init__(self, model: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        words = [sys.executable, "-m", "outpace.cli.main", "serve", str(model), "--served-name", "tiny", "--port", "0"]
        self.process = subprocess.Popen(
            [*words, *flags], stderr=subprocess.PIPE, text=True, env=os.environ | (env or {})
        )
        self.log: list[dict[str, Any]] = []
        self.other: list[str] = []
        """Lines of stderr that are no JSON."""
        self._client: openai.OpenAI | None = None
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                else:
                    self.other.append(line.rstrip())

    def event(self, name: str, number: int = 1) -> dict[str, Any]:
        """The first, second, … log line of a kind, which may still have to come."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [line for line in self.log if line["event"] == name]
            return len(found) >= number

        until(there, self)
        return found[number - 1]

    def line_of(self, request_id: str) -> dict[str, Any]:
        """The log line of a request; it comes just after the response."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [line for line in self.log if line.get("request_id") == request_id]
            return bool(found)

        until(there, self)
        (line,) = found
        return line

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.event('listening')['port']}"

    def client(self, **options: Any) -> openai.OpenAI:
        """The one that tests share; another with options."""
        url, common = f"{self.url}/v1", {"api_key": "any", "max_retries": 0, "timeout": SECONDS}
        if options:
            return openai.OpenAI(base_url=url, **common | options)
        if self._client is None:
            self._client = openai.OpenAI(base_url=url, **common)
        return self._client

    def async_client(self) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=certificates())
        common: dict[str, Any] = {"api_key": "any", "max_retries": 0, "timeout": SECONDS}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", http_client=http, **common)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=SECONDS, verify=certificates(), **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=SECONDS, verify=certificates(), **options)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/v1/outpace/state").json()
        return state

    def wait_ready(self) -> None:
        self.event("engine ready")

    def held_pages(self) -> int:
        """KV pages that are neither free nor kept for later prompts."""
        pages = self.state()["now"]["pages"]
        held: int = pages["total"] - pages["free"] - pages["cached"]
        return held

    def end(self) -> int:
        """SIGTERM; the exit code."""
        if self._client is not None:
            self._client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self._reader.join(SECONDS)


@cache
def certificates() -> ssl.SSLContext:
    """Read once: every client would take a tenth of a second for them, though none uses them."""
    return ssl.create_default_context()


@contextmanager
def serving(model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that is ready, ended when the block is left."""
    server = Server(model, *flags, env=env)
    try:
        server.wait_ready()
        yield server
    finally:
        server.end()


def until(condition: Callable[[], bool], server: Server | None = None, seconds: float = SECONDS) -> None:
    """Waits for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        said = "" if server is None else f"; log: {server.log[-5:]}, {server.other[-20:]}"
        assert time.monotonic() < deadline, f"waited {seconds} s in vain{said}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A process that is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def reserved_port() -> Iterator[int]:
    """One that nobody listens on, and that the kernel gives to no other connection; a server may be told to take it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers set it, who take it beside this one
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
