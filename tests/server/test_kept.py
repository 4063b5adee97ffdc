"""What is kept of a request while it is answered, which may take minutes: nothing that grows with its body."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from outpace.cli.serve import start_of
from outpace.server.replica import Replica
from outpace.server.settings import ServerConfig

MIB = 1 << 20
SHORT: dict[str, Any] = {"model": "tiny", "max_tokens": 5}
HINTED = {"role": "user", "content": "a", "cache_control": {"a": ["b" * 1000] * 1000}}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": SHORT | {"prompt": "a", "prediction": {"content": "b" * 4 * MIB}},
    "/v1/chat/completions": SHORT | {"messages": [HINTED] * 4},
}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def kept() -> int:
    """Bytes that are held."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def kept_of(replica: Replica, path: str, stream: bool) -> int:
    """Bytes that are held of a request which the engine, being stopped, has been sent and does not answer."""
    asked = [json.dumps(ASKED[path] | {"stream": stream}).encode()]
    assert len(asked[0]) > 3 * MIB
    before = kept() - len(asked[0])

    async def receive() -> Any:
        return {"type": "http.request", "body": asked.pop()} if asked else await asyncio.Future()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b""}
    headers = [(b"content-type", b"application/json")]
    answer = asyncio.create_task(replica.app(scope | {"headers": headers}, receive, send))
    while not replica._client.desk.num_running:
        assert not answer.done(), answer.result()
        await asyncio.sleep(0.01)
    held = kept() - before
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    return held


@pytest.mark.usefixtures("traced")
def test_a_body_is_let_go_when_the_engine_was_asked(model: Path) -> None:
    async def live() -> dict[tuple[str, bool], int]:
        engine = start_of({"model": str(model), "drafter": "none", "device": "cpu", "num_pages": 60})
        replica = await Replica.start(engine, ServerConfig(served_name="tiny"))
        pid, found = replica._client.pid, {}
        assert pid is not None
        for path, stream in product(ASKED, (False, True)):
            os.kill(pid, signal.SIGSTOP)
            found[path, stream] = await kept_of(replica, path, stream)
            os.kill(pid, signal.SIGCONT)
            while replica._client.desk.num_running:
                await asyncio.sleep(0.01)
        await replica.end()
        return found

    held = asyncio.run(live())
    assert max(held.values()) < MIB // 2, held
