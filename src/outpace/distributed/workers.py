"""Processes that work for this one, such as other ranks or a server's engine: fresh Pythons that inherit a socket.

Here alone they are started, waited for and killed, and here is said how they ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Lock, Thread

from outpace.distributed.process import command

SECONDS_TO_END = 5.0
OWN_GROUP = 0
"""As `process_group` of a process that Ctrl-C in a terminal is not meant for. A group and no session: one that was
stopped before it could bind itself is woken by the kernel when its parent is gone, and then ends."""


class Worker:
    """A process that runs a module's `main` with a socket's descriptor. It never outlives this one.

    Args:
        module: what it runs.
        settings: environment variables that it has from its first moment, whatever the user's say.
        defaults: those that it has where the user's do not say.
        grouped: it belongs to this process's group, so that one signal ends both, and ignores Ctrl-C itself. Else it
            leads a group, which is killed with it, and when it has ended.

    Raises:
        OSError: no process can be started.

    Attributes:
        connection: this end of the socket. The process ends when it is closed.
        pid: its process id.
        ended: its exit code as `Popen.returncode` has it, once it has ended and what it left of its group is killed.
    """

    def __init__(
        self,
        module: str,
        settings: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, str] | None = None,
        grouped: bool = False,
    ) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        env = {**(defaults or {}), **os.environ, **(settings or {})}

        def start() -> subprocess.Popen[bytes]:
            with theirs:
                return subprocess.Popen(  # not asyncio's: other event loops, as Ray Serve's, start none in a group
                    command(module, theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # stdout is not for what a worker says
                    process_group=None if grouped else OWN_GROUP,
                )

        try:
            self._process = _Process(start, leads=not grouped)
        except BaseException as error:
            self.connection.close()
            if isinstance(error, OSError):  # else the other end may be just being handed over
                theirs.close()
            raise
        self.pid, self.ended = self._process.pid, self._process.ended

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def how_it_ended(self, seconds: float = 1.0) -> str | None:
        """In words; None if it has not, in so many seconds."""
        try:
            return end_in_words(self.ended.result(seconds))
        except TimeoutError:
            return None

    def kill(self) -> None:
        """Ends it at once, in whatever it hangs, and the group that it leads. Waits for nothing."""
        self._process.kill()

    def end(self) -> None:
        """See `end`."""
        end([self])


def end(workers: Sequence[Worker]) -> None:
    """Waits until they have ended, which they do when their sockets are closed; kills those that do not.

    However many hang, that takes twice `SECONDS_TO_END` at most.
    """
    wait([worker.ended for worker in workers], SECONDS_TO_END)
    for worker in workers:
        worker.kill()
    wait([worker.ended for worker in workers], SECONDS_TO_END)  # one that its driver holds may never end


class _Process:
    """A process, and the thread that starts it and stays: to the kernel its parent, whose end is the process's too.

    The thread alone waits for it, so that it is no zombie though nobody asks. It holds no socket: a worker that nobody
    has any more hangs up.

    Args:
        start: called by the thread.
        leads: it leads a group.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]], *, leads: bool) -> None:
        self.ended: Future[int] = Future()
        self.ended.set_running_or_notify_cancel()  # who gives up waiting for it does not cancel it
        self._leads = leads
        self._lock = Lock()
        """Who holds it knows whether the process's number is still its own."""
        started: Future[subprocess.Popen[bytes]] = Future()
        try:
            Thread(target=self._stay, args=(start, started), name="parent", daemon=True).start()
        except RuntimeError as error:  # to the kernel a thread is a process like others, of which there are too many
            raise OSError(str(error)) from error
        self._popen = started.result()
        self.pid = self._popen.pid

    def _stay(self, start: Callable[[], subprocess.Popen[bytes]], started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            process = start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        _await_end(process)
        with self._lock:
            if self._leads:
                _send_kill(process.pid, group=True)
            code = process.wait()
        self.ended.set_result(code)

    def kill(self) -> None:
        with self._lock:
            if self._popen.returncode is None:  # else its number may be another's by now
                _send_kill(self.pid, group=self._leads)


def end_in_words(code: int) -> str:
    """What a process did that ended with this `Popen.returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal_name(-code)}{' (out of memory?)' if -code == signal.SIGKILL else ''}"


def signal_name(number: int) -> str:
    """As `SIGKILL`; some numbers have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended. On Linux its number and its group's stay its own until `Popen.wait`: no other is killed."""
    if sys.platform == "linux":
        with suppress(ChildProcessError):  # where this process ignores SIGCHLD, nobody learns the code
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _send_kill(pid: int, *, group: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)
