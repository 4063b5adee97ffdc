"""A server without a port: what runs in an actor of Ray Serve's, and Ray Serve itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvloop

from outpace.cli.serve import start_of
from outpace.errors import ConfigError, EngineError
from outpace.server.replica import Replica
from outpace.server.settings import ServerConfig
from server.running import SECONDS, certificates, is_alive, until

UNDER_RAY = """
import sys

import ray
from ray import serve

from outpace.cli.replicas import app

ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
try:
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(app({"config": sys.argv[1], "replicas": "2"}))
    print("serving", flush=True)
    sys.stdin.read()
finally:
    serve.shutdown()
    ray.shutdown()
"""
"""A process of its own: Ray leaves handlers of signals behind."""
ASKED = {"model": "tiny", "prompt": "a", "max_tokens": 5, "temperature": 0}


def settings(model: Path, **changes: Any) -> dict[str, Any]:
    return {"model": str(model), "drafter": "none", "device": "cpu", "num_pages": 60} | changes


def test_a_replica_answers_and_says_when_its_engine_is_gone_for_good(model: Path) -> None:
    async def live() -> None:
        replica = await Replica.start(start_of(settings(model)), ServerConfig(served_name="tiny", max_restarts=0))
        transport = httpx.ASGITransport(app=replica.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", verify=certificates()) as client:
            answer = await client.post("/v1/completions", json=ASKED)
            assert answer.json()["usage"]["completion_tokens"] == 5
            pid = (await client.get("/v1/outpace/state")).json()["engine_pid"]
            replica.check_health()
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(SECONDS):
                while (await client.get("/health")).status_code != 503:
                    await asyncio.sleep(0.05)
            with pytest.raises(EngineError, match=r"SIGKILL.*died too often"):
                replica.check_health()
        await replica.end()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in an actor of Ray Serve's
        runner.run(live())


def test_a_replica_that_cannot_start_says_why(model: Path) -> None:
    with pytest.raises(ConfigError, match="max_context is 9999"):
        asyncio.run(Replica.start(start_of(settings(model, max_context=9999)), ServerConfig()))


@pytest.fixture
def settings_file(model: Path, tmp_path: Path) -> Path:
    file = tmp_path / "server.toml"
    told = settings(model, served_name="tiny")
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in told.items()))
    return file


@pytest.mark.filterwarnings("ignore")  # of Ray's own code
def test_where_ray_serve_listens_is_not_for_the_file_to_say(settings_file: Path) -> None:
    from outpace.cli.replicas import app

    settings_file.write_text(settings_file.read_text() + "port = 1\n")
    with pytest.raises(ConfigError, match="port is 1, but Ray Serve listens"):
        app({"config": str(settings_file)})


def quiet_port() -> int:
    """Of those that neither the kernel nor Ray gives to whoever wants any: Ray itself opens dozens meanwhile."""
    for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("none is free")


@contextmanager
def replicas(settings_file: Path, port: int) -> Iterator[None]:
    """Two, until the block is left."""
    words = [sys.executable, "-c", UNDER_RAY, str(settings_file), str(port)]
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert "serving\n" in process.stdout
            yield
        finally:
            process.stdin.close()
            process.stdout.read()
    assert process.returncode == 0


def test_ray_serve_spreads_requests_over_replicas(settings_file: Path) -> None:
    port = quiet_port()
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=certificates())
    with replicas(settings_file, port), client:
        pids = {client.get("/v1/outpace/state").json()["engine_pid"] for _ in range(40)}
        assert len(pids) == 2
        assert client.post("/v1/completions", json=ASKED).json()["usage"]["completion_tokens"] == 5
        with client.stream("POST", "/v1/completions", json=ASKED | {"stream": True}) as answer:
            assert "data: [DONE]" in list(answer.iter_lines())
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid))
