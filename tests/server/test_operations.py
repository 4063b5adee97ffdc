"""Limits, deaths and the way out: what operators rely on, seen from outside."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import openai
import pytest

from server.running import SECONDS, Server, is_alive, serving, until

pytestmark = pytest.mark.slow

PLAIN = ("--drafter", "none", "--num-pages", "140")
LONG: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 2000, "temperature": 0}
LONG_BODY = LONG | {"ignore_eos": True}
SHORT: dict[str, Any] = {"model": "tiny", "prompt": "b", "max_tokens": 5, "temperature": 0}


def long_stream(server: Server) -> Any:
    """A stream that has begun, and has long to go."""
    stream = server.client().completions.create(**LONG, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    return stream


def post_later(pool: ThreadPoolExecutor, server: Server, body: dict[str, Any]) -> Future[httpx.Response]:
    return pool.submit(server.post, "/v1/completions", body)


def engine_pid(server: Server) -> int:
    pid: int = server.state()["engine_pid"]
    return pid


@pytest.fixture(scope="module")
def narrow(model: Path) -> Iterator[Server]:
    """One answer at a time, and two may wait."""
    flags = ("--max-concurrency", "1", "--queue-limit", "2", "--max-body-bytes", "20000", "--log-interval", "0.2")
    flags += ("--hang-timeout", "4", "--max-restarts", "9", "--default-max-tokens", "7")
    with serving(model, *PLAIN, *flags) as running:
        yield running


def test_a_killed_engine_fails_what_it_had_begun_and_nothing_else(narrow: Server) -> None:
    expected = narrow.post("/v1/completions", SHORT).json()["choices"]
    first = engine_pid(narrow)
    with ThreadPoolExecutor() as pool:
        stream = long_stream(narrow)
        waiting = [post_later(pool, narrow, SHORT) for _ in range(2)]
        until(lambda: narrow.state()["waiting"] == 2)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="was killed by SIGKILL"):
            list(stream)
        for answer in waiting:
            assert answer.result().json()["choices"] == expected
    state = narrow.state()
    assert state["engine_deaths"] == 1 and state["engine_pid"] != first
    assert not is_alive(first)
    assert narrow.post("/v1/completions", SHORT).json()["choices"] == expected
    death = narrow.event("engine died")
    assert "SIGKILL" in death["how"] and death["deaths"] == 1


def test_an_answer_that_does_not_stream_fails_with_503_and_the_reason(narrow: Server) -> None:
    deaths = narrow.state()["engine_deaths"]
    with ThreadPoolExecutor() as pool:
        answer = post_later(pool, narrow, LONG_BODY)
        until(lambda: narrow.state()["running"] == 1)
        os.kill(engine_pid(narrow), signal.SIGKILL)
        response = answer.result()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_died"
    assert "killed by SIGKILL" in response.json()["error"]["message"]
    assert response.headers["retry-after"]
    narrow.event("engine ready", deaths + 2)


def test_an_engine_that_hangs_is_killed_and_started_again(narrow: Server) -> None:
    """A stopped process is one that hangs, seen from outside."""
    expected = narrow.post("/v1/completions", SHORT).json()["choices"]
    deaths, first = narrow.state()["engine_deaths"], engine_pid(narrow)
    with ThreadPoolExecutor() as pool:
        stream = long_stream(narrow)
        waiting = [post_later(pool, narrow, SHORT) for _ in range(2)]
        until(lambda: narrow.state()["waiting"] == 2)
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(openai.APIError, match="hung and was killed: it had work and gave no sign of life for 4 s"):
            list(stream)
        for answer in waiting:
            assert answer.result().json()["choices"] == expected
    assert "hung" in narrow.event("engine died", deaths + 1)["how"]
    assert not is_alive(first)


def health(connection: HTTPConnection) -> bytes:
    connection.request("GET", "/health")
    return connection.getresponse().read()


def test_an_idle_engine_may_be_silent_and_an_idle_connection_is_kept(narrow: Server) -> None:
    deaths, pid = narrow.state()["engine_deaths"], engine_pid(narrow)
    connection = HTTPConnection(urlsplit(narrow.url).netloc, timeout=60)
    assert health(connection) == b'{"status":"ready"}'
    os.kill(pid, signal.SIGSTOP)
    time.sleep(6)
    os.kill(pid, signal.SIGCONT)
    connection.auto_open = 0  # the same one, or an error
    assert health(connection) == b'{"status":"ready"}'
    connection.close()
    assert narrow.post("/v1/completions", SHORT).status_code == 200
    assert narrow.state()["engine_deaths"] == deaths and engine_pid(narrow) == pid


def test_a_full_queue_says_when_to_try_again(narrow: Server) -> None:
    with ThreadPoolExecutor() as pool:
        stream = long_stream(narrow)
        waiting = [post_later(pool, narrow, SHORT) for _ in range(2)]
        until(lambda: narrow.state()["waiting"] == 2)
        refused = narrow.post("/v1/completions", SHORT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        stream.close()
        assert {answer.result().status_code for answer in waiting} == {200}
    assert narrow.post("/v1/completions", SHORT | {"n": 4}).status_code == 503
    assert narrow.post("/v1/completions", SHORT | {"n": 3}).status_code == 200


def test_a_client_that_leaves_frees_its_pages(narrow: Server) -> None:
    stream = long_stream(narrow)
    assert narrow.held_pages() > 0
    stream.close()
    until(lambda: narrow.state()["running"] == 0)
    assert narrow.held_pages() == 0
    line = narrow.line_of(stream.response.headers["x-request-id"])
    assert line["completion_tokens"] < 2000
    assert (line["status"], line["error"]) == (200, "the client went away")


@contextmanager
def asked(server: Server, body: dict[str, Any]) -> Iterator[str]:
    """A request on a connection that breaks when the block is left; its id."""
    request_id = f"req-{secrets.token_hex(8)}"
    made = httpx.Request("POST", server.url + "/v1/completions", json=body)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: {request_id}\r\n"
    )
    with socket.create_connection(("127.0.0.1", made.url.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(made.content)}\r\n\r\n".encode() + made.content)
        yield request_id


@pytest.mark.parametrize("stream", [True, False])
def test_a_broken_connection_frees_its_pages(narrow: Server, stream: bool) -> None:
    with asked(narrow, LONG_BODY | {"stream": stream}) as request_id:
        until(lambda: narrow.state()["running"] == 1)
        until(lambda: narrow.held_pages() > 0)
    until(lambda: narrow.state()["running"] == 0)
    assert narrow.held_pages() == 0
    line = narrow.line_of(request_id)
    assert line["completion_tokens"] < 2000
    assert (line["status"], line["error"]) == (200 if stream else 499, "the client went away")


def test_a_client_that_leaves_the_queue_is_never_begun(narrow: Server) -> None:
    stream = long_stream(narrow)
    with asked(narrow, LONG_BODY) as request_id:
        until(lambda: narrow.state()["waiting"] == 1)
    line = narrow.line_of(request_id)
    assert (line["status"], line["error"], line.get("completion_tokens", 0)) == (499, "the client went away", 0)
    assert narrow.state()["waiting"] == 0
    stream.close()


def test_a_request_without_a_limit_has_the_servers(narrow: Server) -> None:
    asked = {"model": "tiny", "temperature": 0, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": "a"}]}
    bodies = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": chat}
    for path, body in bodies.items():
        for own, tokens in (({}, 7), ({"max_tokens": 9}, 9)):
            answer = narrow.post(path, asked | body | own).json()
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length"


def test_large_bodies_are_refused(narrow: Server) -> None:
    def endless() -> Any:
        for _ in range(100):
            yield b" " * 1000

    for content in (b" " * 20_001, endless()):
        response = httpx.post(narrow.url + "/v1/completions", content=content)
        assert response.status_code == 413
        assert "20000 bytes" in response.json()["error"]["message"]


def test_a_line_about_speed_comes_while_something_runs(narrow: Server) -> None:
    keys = {"tok_s", "accept_length", "running", "waiting", "k", "why", "weighed", "pages", "graph_hit_rate"}
    num_before = len([line for line in narrow.log if line["event"] == "speed"])
    stream = long_stream(narrow)

    def lines() -> list[dict[str, Any]]:
        return [line for line in narrow.log if line["event"] == "speed"][num_before:]

    until(lambda: any(line["tok_s"] > 0 and line["pages"] is not None for line in lines()), narrow)
    assert all(keys <= set(line) for line in lines())
    stream.close()


def test_it_drains_and_leaves_nothing_behind(model: Path) -> None:
    with serving(model, *PLAIN, "--drain-timeout", "600") as server, ThreadPoolExecutor() as pool:
        pid = engine_pid(server)
        os.kill(pid, signal.SIGSTOP)  # the answer takes as long as is looked at what happens meanwhile
        answer = post_later(pool, server, SHORT)
        until(lambda: server.state()["running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        server.event("draining")
        refused = server.post("/v1/completions", SHORT)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert server.get("/ready").status_code == 503
        assert server.get("/health").status_code == 200
        os.kill(pid, signal.SIGCONT)
        assert answer.result().json()["usage"]["completion_tokens"] == 5
        assert server.process.wait(SECONDS) == 0
        until(lambda: not is_alive(pid))
        assert server.other == []


def test_a_second_signal_ends_it_at_once(model: Path) -> None:
    with serving(model, *PLAIN, "--drain-timeout", "600") as server:
        pid = engine_pid(server)
        long_stream(server)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            server.event("draining")
        assert server.process.wait(SECONDS) == 0
        until(lambda: not is_alive(pid))


@contextmanager
def half_sent(server: Server) -> Iterator[None]:
    """A client that has sent half of its request, and no more."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        yield


def test_time_has_an_end(model: Path) -> None:
    with serving(model, *PLAIN, "--request-timeout", "0.2") as server:
        late = server.post("/v1/completions", LONG_BODY)
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
        with pytest.raises(openai.APIError, match="took longer"):
            list(long_stream(server))
        assert server.held_pages() == 0
        assert not any("traceback" in line for line in server.log)


def test_what_has_not_ended_when_draining_has_is_told_so(model: Path) -> None:
    with serving(model, *PLAIN, "--drain-timeout", "0.05") as server, half_sent(server):
        stream = long_stream(server)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shut down before"):
            list(stream)
        assert server.process.wait(SECONDS) == 0
        until(lambda: not server._reader.is_alive())
        assert not any("traceback" in line for line in server.log)
        assert any(line.get("status") == 503 and "before the body came" in line["error"] for line in server.log)


PATIENT = """
import sys
if "outpace.distributed.process" not in sys.orig_argv:  # the engine is to begin as it does
    from outpace.server.engine_client import child
    child.SECONDS_TO_END = 600.0
"""


def test_a_second_signal_ends_it_at_once_whatever_its_engine_does(model: Path, tmp_path: Path) -> None:
    """An engine that hangs is given ten minutes here to end by itself, unless it is killed."""
    (tmp_path / "sitecustomize.py").write_text(PATIENT)  # what Python looks for at its start
    patient = {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))}
    with serving(model, *PLAIN, env=patient) as server, ThreadPoolExecutor() as pool:
        pid, answer, stream = engine_pid(server), post_later(pool, server, LONG_BODY), long_stream(server)
        until(lambda: server.state()["running"] == 2)
        os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        server.event("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0
        with pytest.raises(openai.APIError, match="shut down before"):
            list(stream)
        assert answer.result().json()["error"]["code"] == "draining"
        assert not is_alive(pid)
        until(lambda: not server._reader.is_alive())
        assert not any("traceback" in line for line in server.log) and not server.other


def test_a_flood_of_connections_leaves_health_and_the_others_alone(model: Path) -> None:
    with serving(model, *PLAIN, "--max-connections", "20") as server, ExitStack() as open_ones:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        for _ in range(200):
            open_ones.enter_context(socket.create_connection(address))
        assert server.get("/health").status_code == 200
        assert server.post("/v1/completions", SHORT).status_code == 200
        until(lambda: len([*Path(f"/proc/{server.process.pid}/fd").iterdir()]) < 60)
        for _ in range(20):
            client = open_ones.enter_context(socket.create_connection(address))
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 100 "), "the server waits for its body"
        crowded = server.post("/v1/completions", SHORT)
        assert crowded.status_code == 503 and crowded.json()["error"]["code"] == "too_many_connections"
        assert server.get("/health").status_code == 200
        open_ones.close()
        until(lambda: server.post("/v1/completions", SHORT).status_code == 200, server)


def test_a_log_line_repeats_no_long_path(narrow: Server) -> None:
    asked = narrow.get("/" + "a" * 50_000)
    assert asked.status_code == 404
    assert len(narrow.line_of(asked.headers["x-request-id"])["path"]) == 200


@pytest.mark.parametrize("hangs", [False, True])
def test_the_engine_does_not_outlive_a_killed_server(model: Path, hangs: bool) -> None:
    with serving(model, *PLAIN) as server:
        pid = engine_pid(server)
        long_stream(server)
        if hangs:
            os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        until(lambda: not is_alive(pid))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--drafter", "./nowhere"), "there is no model './nowhere'"),
        (("--host", "192.0.2.1"), "cannot listen on '192.0.2.1' port 0: this machine has no such address: see --host"),
        (("--max-connections", "1000000000"), "max_connections is 1000000000"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_code_2(model: Path, flags: tuple[str, ...], message: str) -> None:
    words = [sys.executable, "-m", "outpace.cli.main", "serve", str(model), "--port", "0", *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("outpace: ")]
    assert message in line
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_refused_before_anything_is_loaded(narrow: Server) -> None:
    port = urlsplit(narrow.url).port
    words = [sys.executable, "-m", "outpace.cli.main", "serve", "./nowhere", "--port", str(port)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"outpace: cannot listen on '127.0.0.1' port {port}: another program listens there: ")
    assert "--port" in line


def test_an_engine_that_dies_too_often_ends_the_server(model: Path) -> None:
    with serving(model, *PLAIN, "--max-restarts", "0") as server:
        os.kill(engine_pid(server), signal.SIGKILL)
        assert server.process.wait(SECONDS) == 1
        until(lambda: any("died too often" in line for line in server.other), server)
