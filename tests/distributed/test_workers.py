"""Processes that work for another one end with it, at whatever moment: a killed parent leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from outpace.distributed import workers
from outpace.distributed.process import command
from outpace.distributed.workers import Worker
from outpace.parent import ORPHANED
from server.running import SECONDS, is_alive, until

STOPS_ITSELF = """
import os, signal, socket

def main(descriptor):
    socket.socket(fileno=descriptor).sendall(b"up")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
BY_A_THREAD_THAT_ENDS = """
from threading import Thread
from outpace.distributed.workers import Worker

started = []
thread = Thread(target=lambda: started.append(Worker("stops_itself")))
thread.start()
thread.join()
assert started[0].connection.recv(2) == b"up", "the thread's end is not the process's"
pid = started[0].pid
"""
STOPPED_AT_ONCE = """
from outpace.distributed.workers import Worker

pid = Worker("stops_itself").pid
os.kill(pid, signal.SIGSTOP)
"""
ENGINE_STOPPED_AT_ONCE = """
import asyncio
from outpace.server.engine_client.child import Child
from outpace.server.wire import Start

start = Start(model="x", drafter=None, dtype="float32", device="cpu", aux_boundaries=None, options={})
loop = asyncio.new_event_loop()
pid = loop.run_until_complete(Child.start(start)).pid
os.kill(pid, signal.SIGSTOP)
"""


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def parent_of(
    start: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A Python in a session of its own, as a service has one, and the process that it started."""
    (directory / "stops_itself.py").write_text(STOPS_ITSELF)
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    script = f"import os, signal\n{start}\nprint(pid, flush=True)\nsignal.pause()\n"
    words = [sys.executable, "-c", script]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


@pytest.mark.parametrize("start", [BY_A_THREAD_THAT_ENDS, STOPPED_AT_ONCE, ENGINE_STOPPED_AT_ONCE])
def test_a_stopped_process_ends_with_a_killed_parent(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parent_of(start, tmp_path, monkeypatch) as (parent, pid):
        until(lambda: is_stopped(pid))
        parent.kill()
        until(lambda: not is_alive(pid))


def test_a_process_whose_parent_is_gone_does_not_begin() -> None:
    """The parent died before the kernel was told of it: nothing that takes long is imported any more."""
    *words, _ = command("no.such.module", 0)
    orphan, child = (
        subprocess.run([*words, str(parent)], capture_output=True, text=True) for parent in (os.getppid(), os.getpid())
    )
    assert (orphan.returncode, orphan.stderr) == (ORPHANED, "")
    assert "No module named 'no'" in child.stderr


def test_an_error_of_starting_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        Worker("stops_itself")


def test_too_many_threads_is_what_too_many_processes_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """To those who start one again later: the kernel counts both alike."""

    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(OSError, match="can't start new thread"):
        Worker("stops_itself")


@contextmanager
def working(directory: Path, monkeypatch: pytest.MonkeyPatch, code: str, **options: Any) -> Iterator[Worker]:
    """A worker that runs this with `connection`, its end of the socket."""
    body = indent(f"connection = socket.socket(fileno=descriptor)\n{code}", "    ")
    (directory / "works.py").write_text(
        f"import os, signal, socket, subprocess, sys\n\ndef main(descriptor):\n{body}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    worker = Worker("works", **options)
    try:
        yield worker
    finally:
        worker.connection.close()
        worker.kill()
        worker.end()


def is_there(pid: int) -> bool:
    """Zombies are."""
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.exit(3)", "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was killed by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL (out of memory?)"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_how_one_ended_is_known_whoever_asks_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    with working(tmp_path, monkeypatch, code) as worker:
        until(lambda: not is_there(worker.pid))  # a zombie would wait to be asked for
        until(lambda: not worker.alive)
        assert [worker.how_it_ended(), worker.how_it_ended()] == [says, says]


LEAVES_ONE = """
left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
connection.sendall(str(left.pid).encode())
"""


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_left_of_its_group_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    code = LEAVES_ONE + ("signal.pause()" if killed else "os._exit(0)")
    with working(tmp_path, monkeypatch, code) as worker:
        left = int(worker.connection.recv(20))
        if killed:
            assert is_alive(left) and worker.alive
            worker.kill()
        worker.ended.result(SECONDS)
        until(lambda: not is_alive(left))


def test_no_signal_is_sent_to_a_number_that_may_be_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with working(tmp_path, monkeypatch, "pass") as worker:
        worker.ended.result(SECONDS)
        sent: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
        worker.kill()
    assert not sent


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SECONDS_TO_END", 0.5)
    with working(tmp_path, monkeypatch, "os.kill(os.getpid(), signal.SIGSTOP)") as worker:
        until(lambda: is_stopped(worker.pid))
        assert worker.how_it_ended(0.0) is None
        worker.connection.close()
        worker.end()
        until(lambda: not is_there(worker.pid))


def test_many_that_hang_are_waited_for_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SECONDS_TO_END", 0.5)
    waited: list[int] = []
    wait = workers.wait

    def noted(ends: list[Future[int]], seconds: float) -> Any:
        waited.append(len(ends))
        return wait(ends, seconds)

    monkeypatch.setattr(workers, "wait", noted)
    with ExitStack() as stack:
        hang = [
            stack.enter_context(working(tmp_path, monkeypatch, "os.kill(os.getpid(), signal.SIGSTOP)"))
            for _ in range(4)
        ]
        for worker in hang:
            until(lambda pid=worker.pid: is_stopped(pid))
        workers.end(hang)
        assert waited == [4, 4], "once for all of them, and once more when they are killed"
        assert all("SIGKILL" in (worker.how_it_ended() or "") for worker in hang)


def test_one_that_nobody_has_any_more_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread does not keep the socket."""
    with working(tmp_path, monkeypatch, "connection.recv(1)") as worker:
        other = Worker("works")
        pid, ended = other.pid, other.ended
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del other
            gc.collect()
        assert ended.result(SECONDS) == 0
        assert not is_there(pid) and worker.alive


def test_what_is_asked_for_wins_over_the_users_environment_and_that_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED", "the user's")
    monkeypatch.setenv("GIVEN", "the user's")
    settings, defaults = {"ASKED": "asked"}, {"ASKED": "default", "GIVEN": "default", "UNSAID": "default"}
    code = "connection.sendall(' '.join(os.environ[name] for name in ('ASKED', 'GIVEN', 'UNSAID')).encode())"
    with working(tmp_path, monkeypatch, code, settings=settings, defaults=defaults) as worker:
        worker.ended.result(SECONDS)
        assert worker.connection.recv(100) == b"asked the user's default"


def test_the_signal_is_the_one_that_nobody_survives() -> None:
    """Read back from the kernel."""
    script = (
        "import ctypes, os; from outpace.parent import end_with_parent; end_with_parent(os.getppid());"
        "found = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(found)); print(found.value)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(said) == signal.SIGKILL
