"""Processes that work for another one end with it, at whatever moment: a killed parent leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outpace.distributed.process import command
from outpace.distributed.workers import Worker
from outpace.parent import ORPHANED
from server.running import is_alive, until

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
thread = Thread(target=lambda: started.append(Worker("stops_itself", {})))
thread.start()
thread.join()
assert started[0].connection.recv(2) == b"up", "the thread's end is not the process's"
pid = started[0].pid
"""
STOPPED_AT_ONCE = """
from outpace.distributed.workers import Worker

pid = Worker("stops_itself", {}).pid
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
        Worker("stops_itself", {})


def test_the_signal_is_the_one_that_nobody_survives() -> None:
    """Read back from the kernel."""
    script = (
        "import ctypes, os; from outpace.parent import end_with_parent; end_with_parent(os.getppid());"
        "found = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(found)); print(found.value)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(said) == signal.SIGKILL
