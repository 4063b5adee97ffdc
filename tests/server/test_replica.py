"""A server without a port: what runs in an actor of Ray Serve's, and Ray Serve itself where it is installed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvloop

from outpace.cli.serve import start_of
from outpace.errors import ConfigError, EngineError
from outpace.server.replica import Replica
from outpace.server.settings import ServerConfig
from server.running import SECONDS, certificates, is_alive, reserved_port, until

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


@pytest.mark.filterwarnings("ignore")  # of Ray's own code
def test_ray_serve_spreads_requests_over_replicas(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    import ray
    from ray import serve

    from outpace.cli.replicas import app

    file = tmp_path / "server.toml"
    told = settings(model, served_name="tiny")
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in told.items()))
    (tmp_path / "port.toml").write_text(file.read_text() + "port = 1\n")
    with pytest.raises(ConfigError, match="port is 1, but Ray Serve listens"):
        app({"config": str(tmp_path / "port.toml")})
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    with reserved_port() as port:
        pass  # Ray may not be able to take it beside this one
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"config": str(file), "replicas": "2"}))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=certificates()) as client:
            pids = {client.get("/v1/outpace/state").json()["engine_pid"] for _ in range(40)}
            assert len(pids) == 2
            assert client.post("/v1/completions", json=ASKED).json()["usage"]["completion_tokens"] == 5
            with client.stream("POST", "/v1/completions", json=ASKED | {"stream": True}) as answer:
                assert "data: [DONE]" in list(answer.iter_lines())
    finally:
        serve.shutdown()
        ray.shutdown()
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid))
