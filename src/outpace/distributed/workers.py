"""Processes that work for this one, such as other ranks: fresh Pythons that inherit a socket and this environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import TypeVar

from outpace.distributed.process import OWN_GROUP, command

SECONDS_TO_END = 5.0
Value = TypeVar("Value")


class Worker:
    """A process that runs a module's `main` with a socket's descriptor. It never outlives this one.

    Args:
        module: what it runs.
        settings: environment variables that it has from its first moment.
        grouped: it belongs to this process's group, so that one signal ends both, and ignores Ctrl-C itself.
    """

    def __init__(self, module: str, settings: dict[str, str], *, grouped: bool = False) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._over = Event()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command(module, theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is not for what a worker says
                process_group=None if grouped else OWN_GROUP,
            )

        try:
            self._process = _by_a_thread_that_stays(start, self._over)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def how_it_ended(self) -> str | None:
        """In words; None if it has not, in a second's time."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None
        if code >= 0:
            return f"exited with status {code}"
        return f"was killed by {signal_name(-code)}"

    def kill(self) -> None:
        """Ends it at once, in whatever it hangs."""
        self._process.kill()
        self._process.wait()
        self._over.set()

    def end(self) -> None:
        """Waits until it has ended, which it does when its socket is closed; kills it if it does not."""
        try:
            self._process.wait(SECONDS_TO_END)
            self._over.set()
        except subprocess.TimeoutExpired:
            self.kill()


def signal_name(number: int) -> str:
    """As `SIGKILL`; some numbers have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _by_a_thread_that_stays(start: Callable[[], Value], over: Event) -> Value:
    """What `start` gives: to the kernel the thread that calls it is the worker's parent, whose end is the worker's."""
    started: Future[Value] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)
        else:
            over.wait()

    Thread(target=run, name="parent", daemon=True).start()
    return started.result()
