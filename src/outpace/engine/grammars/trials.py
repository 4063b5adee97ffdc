"""Trying grammars of strangers in a process that can be killed, before this one compiles them."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from threading import Lock

import msgspec

from outpace.distributed.workers import Worker, signal_name
from outpace.engine.grammars import trial_process as trial
from outpace.engine.grammars.vocabulary import Vocabulary
from outpace.errors import RequestError
from outpace.grammar import Grammar


class TrialFailed(RequestError):
    """A grammar could not be tried, which is not its fault: the same request may be served a moment later."""


class Trials:
    """A trial process for one vocabulary, started when it is first needed, and again where it died. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        body = msgspec.msgpack.encode(vocabulary)
        self._first = len(body).to_bytes(trial.PREFIX, "big") + body
        self._lock = Lock()
        self._worker: Worker | None = None

    def source(self, grammar: Grammar) -> str:
        """A grammar in the library's notation, once it has been compiled within the limits.

        Raises:
            RequestError: it cannot be honoured, or is above a limit.
            TrialFailed: nobody can say.
        """
        asked = msgspec.msgpack.encode(grammar)
        try:
            try:
                answer = self._ask(asked)
            except ConnectionError:  # the process died just now
                answer = self._ask(asked)
        except OSError as error:
            raise untried(str(error)) from error
        verdict = msgspec.msgpack.decode(answer, type=trial.Verdict)
        if verdict.ended_by:
            raise _ended(verdict.ended_by)
        if verdict.error:
            raise RequestError(verdict.error)
        return verdict.source

    def start(self) -> None:
        """Starts the process unless it runs; where it cannot be started, the first grammar is told why."""
        with self._lock, suppress(OSError):
            self._running()

    def close(self) -> None:
        """Ends the process; grammars that a trial has begun of are still told of."""
        with self._lock:
            self._end()

    def _ask(self, grammar: bytes) -> bytes:
        """A verdict.

        Raises:
            OSError: there is none.
        """
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(2 * trial.WALL_S)
            with theirs:
                worker = self._hand_over(theirs)
            try:
                ours.sendall(grammar)
                ours.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
                if not answer:
                    raise ConnectionResetError("the process for it ended")
            except OSError:
                self._give_up(worker)
                raise
        return answer

    def _hand_over(self, connection: socket.socket) -> Worker:
        """Which process was given it."""
        with self._lock:
            worker = self._running()
            try:
                socket.send_fds(worker.connection, [b"\0"], [connection.fileno()])
            except OSError:
                self._end()
                raise
            return worker

    def _give_up(self, worker: Worker) -> None:
        """It died or hangs; the next grammar starts another."""
        with self._lock:
            if self._worker is worker:
                self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.connection.close()
            self._worker.kill()
            self._worker.end()
        self._worker = None

    def _running(self) -> Worker:
        if self._worker is not None and self._worker.alive:
            return self._worker
        self._end()
        self._worker = worker = Worker(trial.__name__, {"OMP_NUM_THREADS": "1"})
        worker.connection.settimeout(trial.WALL_S)
        try:
            worker.connection.sendall(self._first)
        except OSError:
            self._end()
            raise
        return worker


def untried(why: str) -> TrialFailed:
    """For want of time, memory or processes on this machine."""
    return TrialFailed(f"grammar: it could not be tried: {why}; send the request again")


def _ended(signal_number: int) -> RequestError:
    """What a trial is told of that was ended by a signal."""
    if signal_number == signal.SIGALRM:
        return untried(f"the machine is so busy that it had no {trial.CPU_S:g} s of a core within {trial.WALL_S:g} s")
    if signal_number not in trial.BY_ITSELF:
        return untried(f"the process for it was ended by {signal_name(signal_number)}, as where memory is short")
    above = {
        trial.OUT_OF_TIME: f"more than {trial.CPU_S:g} s of a core",
        trial.OUT_OF_MEMORY: f"more than {trial.MEMORY_MIB} MiB",
    }.get(signal.Signals(signal_number), f"what ends the compiler ({signal_name(signal_number)})")
    return RequestError(
        f"grammar: to compile it takes {above}; make it simpler: fewer patterns that must hold at once, lower counts "
        "of repetition"
    )
