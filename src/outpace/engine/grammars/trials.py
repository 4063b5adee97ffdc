"""Trying grammars of strangers in a process that can be killed, before this one compiles them."""

from __future__ import annotations

import socket
from threading import Lock

import msgspec

from outpace.distributed.workers import Worker
from outpace.engine.grammars import trial_process as trial
from outpace.engine.grammars.vocabulary import Vocabulary
from outpace.errors import RequestError
from outpace.grammar import Grammar


class TrialFailed(RequestError):
    """A grammar could not be tried, which is not its fault."""


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
        """
        asked = msgspec.msgpack.encode(grammar)
        try:
            try:
                answer = self._ask(asked)
            except ConnectionError:  # the process died just now
                self.close()
                answer = self._ask(asked)
        except OSError as error:
            raise TrialFailed(f"grammar: it could not be tried: {error}; send the request again") from error
        if not answer:
            raise RequestError(
                f"grammar: to compile it takes more than {trial.CPU_S:g} s of a core ({trial.WALL_S:g} s in all) or "
                f"{trial.MEMORY_MIB} MiB; make it simpler: fewer patterns that must hold at once, lower counts of "
                "repetition"
            )
        verdict = msgspec.msgpack.decode(answer, type=trial.Verdict)
        if verdict.error:
            raise RequestError(verdict.error)
        return verdict.source

    def start(self) -> None:
        """Starts the process unless it runs."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """Ends the process; grammars in it are still told of."""
        with self._lock:
            if self._worker is not None:
                self._worker.connection.close()
                self._worker.end()
            self._worker = None

    def _ask(self, grammar: bytes) -> bytes:
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(2 * trial.WALL_S)
            with theirs:
                self._hand_over(theirs)
            ours.sendall(grammar)
            ours.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: ours.recv(1 << 16), b""))

    def _hand_over(self, connection: socket.socket) -> None:
        with self._lock:
            socket.send_fds(self._running(), [b"\0"], [connection.fileno()])

    def _running(self) -> socket.socket:
        if self._worker is None or not self._worker.alive:
            if self._worker is not None:
                self._worker.connection.close()
            self._worker = Worker(trial.__name__, {"OMP_NUM_THREADS": "1"})
            self._worker.connection.sendall(self._first)
        return self._worker.connection
