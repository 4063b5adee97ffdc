"""Processes that work for this one, such as other ranks: fresh Pythons that inherit a socket and this environment."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from threading import current_thread, main_thread

SECONDS_TO_END = 5.0
BOUND = "bound"
"""Argument of a worker that a main thread started, and that may therefore end with that thread."""
PR_SET_PDEATHSIG = 1
"""Of `linux/prctl.h`."""


class Worker:
    """A process that runs a module's `main` with a socket's descriptor.

    Args:
        module: what it runs, as `python -m module FD`.
        settings: environment variables that it has from its first moment.
        grouped: it belongs to this process's group, so that one signal ends both, and ignores Ctrl-C itself.
    """

    def __init__(self, module: str, settings: dict[str, str], *, grouped: bool = False) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *_bound()],
                pass_fds=(theirs.fileno(),),
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is not for what a worker says
                start_new_session=not grouped,  # Ctrl-C in a terminal is this process's to handle
            )
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
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def kill(self) -> None:
        """Ends it at once, in whatever it hangs."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Waits until it has ended, which it does when its socket is closed; kills it if it does not."""
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _bound() -> list[str]:
    """What tells a worker whether it may end with the thread that starts it."""
    return [BOUND] if current_thread() is main_thread() else []


def end_with_parent() -> None:
    """Has the kernel end this process when the thread that started it ends, so that no hanging one is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
