"""One server behind a URL: what it is, its metrics, and one streamed request.

Nothing of a server is assumed beyond OpenAI's API. What else it offers (usage in every chunk, `ignore_eos`, metrics,
settings) is asked for, and what it refuses is left out and kept in the record.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from outpace.errors import ConfigError
from outpace.lab.bench.answer import Answer
from outpace.lab.bench.asks import Ask
from outpace.lab.bench.body import TooLongError, read_events, read_page
from outpace.lab.bench.settings import Asking
from outpace.lab.bench.stream import Stream
from outpace.lab.bench.told import ASKING

NO_STREAMS = ("text/html", "application/json")
"""What a stream of events does not come as: a proxy's page, an answer in one piece."""
LOCAL = ("127.0.0.1", "::1", "localhost")
PROBE_S = 10.0
MOST_SAID = 300
"""Characters of a server's own words in an error."""

USAGES: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {},
)
"""Ways to ask for token counts, the most telling first."""

MOST_LEVELS, TOO_DEEP = 32, "(nested too deep)"
"""Of settings within settings that are kept."""
SECRET = re.compile(r"key|secret|password|credential|(^|_)token$", re.IGNORECASE)


class Endpoint:
    """A server.

    Args:
        url: with or without /v1 at its end.
        api_key: sent as a bearer token; never kept in a record.
        transport: stands in for the network in tests.

    Raises:
        ConfigError: it is no http URL.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no server's URL; give one such as http://localhost:8000")
        whole = url.rstrip("/").removesuffix("/v1")
        self.url = whole.replace(f"{parts.netloc.rpartition('@')[0]}@", "", 1)
        """Without a password that it may hold."""
        self.is_local = parts.hostname in LOCAL
        self.usage = USAGES[0]
        """How token counts are asked for; `negotiate` finds what the server takes."""
        self._http = httpx2.AsyncClient(
            base_url=whole,
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=None,  # a request has one time limit as a whole
            transport=transport,
            trust_env=not self.is_local,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> httpx2.Response:
        """What the server answers there, whatever its status.

        Raises:
            ConfigError: it cannot be reached, or sends without end.
        """
        try:
            async with asyncio.timeout(PROBE_S), self._http.stream("GET", path) as response:
                return await read_page(response)
        except (TimeoutError, httpx2.TimeoutException):
            raise ConfigError(f"{self.url} does not answer within {PROBE_S:g} s; is the server ready?") from None
        except TooLongError as error:
            raise ConfigError(f"{self.url}{path} sends {error}; is it an inference server?") from None
        except httpx2.HTTPError as error:
            asked = "does it speak TLS, or is it http://" if "[SSL" in str(error) else "is the server running there"
            raise ConfigError(f"cannot reach {self.url}: {str(error) or type(error).__name__}; {asked}?") from None

    async def get_json(self, path: str) -> dict[str, Any]:
        """As `get`; empty where there is no JSON object."""
        response = await self.get(path)
        try:
            found = response.json() if response.status_code == 200 else None
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    async def metrics(self) -> str | None:
        """Its Prometheus text; None where it shows none."""
        response = await self.get("/metrics")
        return response.text if response.status_code == 200 else None

    async def ask(self, ask: Ask, asking: Asking, model: str, number: int) -> Answer:
        """One request, streamed. Whatever goes wrong is told by the answer's `error`."""
        clock = asyncio.get_running_loop().time
        stream = Stream(ask, clock(), ask.max_tokens or asking.max_tokens)
        path = "/v1/chat/completions" if asking.api == "chat" else "/v1/completions"
        try:
            async with asyncio.timeout(asking.timeout_s):
                async with self._http.stream("POST", path, json=self._body(ask, asking, model, number)) as response:
                    kind = response.headers.get("content-type", "").partition(";")[0]
                    if response.status_code != 200:
                        page = await read_page(response)
                        return stream.failed(clock(), f"HTTP {response.status_code}", said(page))
                    if kind in NO_STREAMS:
                        return stream.failed(clock(), "no stream", f"it answers with {kind}")
                    async for data in read_events(response):
                        stream.event(clock(), data)
                        if stream.is_broken:
                            break
        except TimeoutError:
            return stream.failed(clock(), "timeout", f"no end after {asking.timeout_s:g} s")
        except TooLongError as error:
            return stream.failed(clock(), "broken stream", f"one event is {error}")
        except httpx2.HTTPError as error:
            return stream.failed(clock(), "connection", str(error) or type(error).__name__)
        return stream.answer(clock())

    async def negotiate(self, ask: Ask, asking: Asking, model: str, *, is_sglang: bool = False) -> Answer:
        """A first request, by which it is found how the server tells token counts; that is kept in `usage`.

        Args:
            is_sglang: it may tell of each answer's speculation when it is asked to.

        Raises:
            ConfigError: it refuses the request however it is made.
        """
        refused = ""
        for usage in (*([USAGES[0] | ASKING] if is_sglang else []), *USAGES):
            self.usage = usage
            answer = await self.ask(ask, asking, model, 0)
            if answer.error is None or not answer.error.startswith(("HTTP 400", "HTTP 422")):
                break
            refused = refused or answer.error
        if answer.error is not None:
            raise ConfigError(f"{self.url} gives no answer that can be measured: {answer.error}")
        return answer

    def _body(self, ask: Ask, asking: Asking, model: str, number: int) -> dict[str, Any]:
        content = {"messages": list(ask.messages)} if asking.api == "chat" else {"prompt": ask.prompt}
        return {
            "model": model,
            **content,
            "max_tokens": ask.max_tokens or asking.max_tokens,
            "temperature": asking.temperature,
            **({"seed": asking.seed + number} if asking.temperature else {}),
            **({"ignore_eos": True} if asking.ignore_eos else {}),
            "stream": True,
            **self.usage,
        }


def said(response: httpx2.Response) -> str:
    """The server's own words in an error response."""
    try:
        found = response.json()
    except (ValueError, RecursionError):
        return response.text[:MOST_SAID]
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return (message if isinstance(message, str) else json.dumps(message))[:MOST_SAID]


def without_secrets(settings: Mapping[str, Any], levels: int = MOST_LEVELS) -> dict[str, Any]:
    """A server's settings as they may be kept: SGLang's, for one, tell the API key to whoever asks."""
    return {
        name: _without(value, levels - 1)
        for name, value in settings.items()
        if not SECRET.search(name) or value is None or isinstance(value, bool | int | float)
    }


def _without(value: Any, levels: int) -> Any:
    if levels < 0 and isinstance(value, Mapping | list):
        return TOO_DEEP
    if isinstance(value, Mapping):
        return without_secrets(value, levels)
    return [_without(each, levels - 1) for each in value] if isinstance(value, list) else value
