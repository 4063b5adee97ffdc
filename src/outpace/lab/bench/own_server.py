"""A server of ours, started for a measurement and ended after it, so that a model here is measured as any server is.

It is a process of its own on a free port: what is measured is what users of `outpace serve` get, and the client takes
nothing from it. Another commit's code runs from a checkout of its own (`git worktree`) with this Python.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, current_thread, main_thread

import outpace
from outpace.errors import ConfigError, EngineError

START_S = 600.0
"""Loading a large model takes minutes."""
END_S = 30.0
KEPT_LINES = 20
BOUND = """\
import sys
from contextlib import suppress

parent = int(sys.argv.pop(1))
with suppress(ImportError):  # a commit that has no such module
    from outpace.parent import end_with_parent

    end_with_parent(parent)
from outpace.cli.main import main

sys.exit(main())
"""
"""`outpace` in a process that never outlives the one whose id it is given first, not even one that is killed."""


@contextmanager
def own_server(model: str, flags: Sequence[str] = (), *, source: Path | None = None) -> Iterator[str]:
    """The URL of a server that is ready; it ends with the block.

    Args:
        model: as `outpace serve` takes it.
        flags: of `outpace serve`.
        source: a checkout whose code is run instead of this one.

    Raises:
        EngineError: it did not start; the message holds what it said last.
    """
    env = dict(os.environ)
    root = Path(outpace.__file__).parent.parent if source is None else source / "src"
    env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
    words = [sys.executable, "-P", "-c", BOUND, str(os.getpid()), "serve", model, *flags, "--port", "0"]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=env,
        start_new_session=True,  # Ctrl-C in a terminal is this process's to handle
    )
    log = _Log(process)
    try:
        with _ended_by_signals():
            yield f"http://127.0.0.1:{log.port(START_S)}"
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """What would end this process at once, such as its terminal's end, ends the block first: nobody else would end the
    server, which hears no signal of the terminal."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _Log:
    """What the server writes, read all the while so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._events: queue.Queue[dict[str, object] | None] = queue.Queue()
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last.append(line.rstrip())
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def port(self, seconds: float) -> int:
        """Once it listens and its engine is ready.

        Raises:
            EngineError: it ended, or took longer.
        """
        port, ready = 0, False
        while not (port and ready):
            try:
                event = self._events.get(timeout=seconds)
            except queue.Empty:
                raise EngineError(f"the server was not ready after {seconds:g} s; it said {self._said()}") from None
            if event is None:
                raise EngineError(f"the server did not start; it said {self._said()}")
            if event.get("event") == "listening":
                port = int(str(event["port"]))
            ready = ready or event.get("event") == "engine ready"
        return port

    def _said(self) -> str:
        told = [line for line in self._last if not line.startswith("{")]
        return " / ".join(told[-3:] or list(self._last)[-1:]) or "nothing"

    def close(self) -> None:
        self._thread.join(END_S)


def full_commit(commit: str) -> str:
    """The full id of a commit of this repository.

    Raises:
        ConfigError: this package does not run from a repository, or has no such commit.
    """
    error = f"there is no commit {commit!r}"
    return _git(_root(), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", error=error)


def _root() -> Path:
    here = Path(outpace.__file__).parent
    return Path(_git(here, "rev-parse", "--show-toplevel", error="outpace does not run from a git checkout here"))


@contextmanager
def checkout(commit: str) -> Iterator[tuple[Path, str]]:
    """A directory with the source of a commit of this repository, and the commit's full id; gone after the block.

    Raises:
        ConfigError: this package does not run from a repository, or has no such commit.
    """
    root, full = _root(), full_commit(commit)
    with tempfile.TemporaryDirectory(prefix="outpace-") as folder:
        place = Path(folder, "source")
        _git(root, "worktree", "add", "--detach", str(place), full, error=f"cannot check out {commit!r}")
        try:
            yield place, full
        finally:
            _git(root, "worktree", "remove", "--force", str(place), error=f"cannot remove {place}")


def _git(where: Path, *words: str, error: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(f"{error}: git is not installed") from None
    if done.returncode != 0:
        raise ConfigError(f"{error}: {done.stderr.strip() or 'git says no more'}; name one that git knows")
    return done.stdout.strip()
