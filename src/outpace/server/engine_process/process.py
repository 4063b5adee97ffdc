"""The engine process, started by `child` and by nobody else.

It loads what its first message names, then serves until the connection ends; and it ends with the connection at any
moment, so that it never outlives its parent. Where it hangs and cannot notice, the kernel ends it. Nothing but that
socket is inherited.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from functools import partial
from math import inf
from threading import Lock, Thread, get_ident
from time import monotonic

from outpace.engine.llm import LLM
from outpace.engine.ranks.crew import Crew
from outpace.errors import CheckpointError, ConfigError
from outpace.fingerprint import machine
from outpace.server.engine_process.pulse import Pulse
from outpace.server.engine_process.serving import Serving
from outpace.server.looking import look
from outpace.server.wire import (
    Accepted,
    Beat,
    CannotStart,
    Frames,
    FromEngine,
    Lost,
    Piece,
    Ready,
    Stalled,
    Start,
    ToEngine,
    WireError,
    pack,
)

READ_BYTES = 1 << 18


class Inbox:
    """Messages as they come, read by the thread that obeys them: another would have to wake it. One of its own waits
    for the end of the connection alone, which is noticed in the longest step."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames: Frames[ToEngine] = Frames(ToEngine)
        self._woken, self._waker = os.pipe()
        self._there = select.poll()
        self._there.register(connection, select.POLLIN)
        self._there.register(self._woken, select.POLLIN)
        Thread(target=self._await_end, name="inbox", daemon=True).start()

    def wait(self, looking_until: float = 0.0) -> list[ToEngine]:
        """What is there, once something came; looks for it until that time of the monotonic clock, and sleeps from then
        on. Nothing, if it was a part, or if it was only woken."""
        return self._read(look(self._there.poll, looking_until) or self._there.poll())

    def wake(self) -> None:
        """Ends `wait`, from any thread."""
        os.write(self._waker, b"!")

    def take(self) -> list[ToEngine]:
        """What is there now, or a part of it: a long prompt comes with several steps, and holds none of them up."""
        return self._read(self._there.poll(0))

    def _read(self, there: list[tuple[int, int]]) -> list[ToEngine]:
        taken: list[ToEngine] = []
        for descriptor, _ in there:
            if descriptor == self._woken:
                os.read(self._woken, READ_BYTES)
            elif data := self._receive():
                taken += self._frames.feed(data)
            else:
                os._exit(0)
        return taken

    def _receive(self) -> bytes:
        """What came; nothing if the other side is gone."""
        try:
            return self._connection.recv(READ_BYTES)
        except ConnectionError:
            return b""  # it was killed

    def _await_end(self) -> None:
        end = select.poll()
        end.register(self._connection, 0)  # the end is always told
        end.poll()
        os._exit(0)


class Outbox:
    """Messages on their way out: those of one step go together, since each sending wakes the other side."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = Lock()
        """The pulse has a thread of its own."""
        self._frames: list[bytes] = []
        self._begins = False
        """Somebody's first byte or first token is among them."""

    def put(self, message: FromEngine) -> None:
        """To be sent by the next `flush`.

        Raises:
            WireError: it is too large.
        """
        frame = pack(message)
        with self._lock:
            self._frames.append(frame)
            self._begins |= isinstance(message, Accepted) or (
                isinstance(message, Piece) and message.first_s is not None
            )

    def flush(self) -> None:
        """Sends what was put. The kernel likes to wake the other side on this core, behind the step that comes now:
        where an answer begins, that side goes first. Later it may find what several steps came to, which is less work.
        """
        with self._lock:
            if self._frames:
                data, begins = b"".join(self._frames), self._begins
                self._frames.clear()
                self._begins = False
                try:
                    self._connection.sendall(data)
                except ConnectionError:
                    os._exit(0)  # the server was killed
                if begins:
                    os.sched_yield()

    def send(self, message: FromEngine) -> None:
        """Now, behind what was put before."""
        self.put(message)
        self.flush()


def main(descriptor: int) -> None:
    """Serves over an inherited socket until the other side hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the whole group; the parent decides when this one ends
    connection = socket.socket(fileno=descriptor)
    inbox, outbox = Inbox(connection), Outbox(connection)
    try:
        serve(inbox, outbox)
    except (ConfigError, CheckpointError) as error:
        outbox.send(CannotStart(message=str(error)))
    except Exception as error:
        outbox.send(Lost(message=f"{type(error).__name__}: {error}"[:2000]))
        raise


def _tell_of_ranks(llm: LLM, serving: Serving, outbox: Outbox) -> None:
    """Which of them hangs, while it still can be said: whoever kills this process ends them too."""
    if llm.ranks is not None and serving.busy:
        outbox.send(Stalled(message=llm.ranks.whereabouts()[:2000]))


def serve(inbox: Inbox, outbox: Outbox) -> None:
    """Loads, then steps while there is work; looks for more for as long as it is told, and sleeps then."""
    first: list[ToEngine] = []
    while not first:
        first = inbox.wait()
    start, *others = first
    if not isinstance(start, Start):
        raise WireError(f"{type(start).__name__} came before Start")
    pulse = Pulse(get_ident(), lambda: outbox.send(Beat()), longest_step=inf, watching=(Crew.hear,))
    llm = LLM(
        start.model,
        drafter=start.drafter,
        dtype=start.dtype,
        device=start.device,
        aux_boundaries=start.aux_boundaries,
        **start.options,
    )
    pulse.end()
    gc.collect()
    gc.freeze()  # what was loaded stays: looking through it again would hold a step up for a tenth of a second
    outbox.send(Ready(settings=llm.describe() | {"fingerprint": machine()}))
    llm.engine.grammars.guard()
    llm.engine.grammars.warm()
    serving = Serving(llm, outbox.put)
    looks = start.awake if llm.device.type == "cuda" else 0.0  # a CPU's cores have a model to run
    looking_until = 0.0
    serving.handle(others)
    pulse = Pulse(get_ident(), lambda: outbox.send(Beat()), stalled=partial(_tell_of_ranks, llm, serving, outbox))
    if llm.ranks is not None:
        llm.ranks.when_they_end(inbox.wake)  # not the next request is to find that out
    while True:
        messages = inbox.take() if serving.busy else inbox.wait(looking_until)
        if llm.ranks is not None:
            llm.ranks.check()
        pulse.stepped()
        serving.handle(messages)
        outbox.flush()
        if serving.busy:
            serving.step()
            outbox.flush()
            looking_until = monotonic() + looks
