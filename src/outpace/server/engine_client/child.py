"""One engine process, seen from its parent: started, spoken to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

from outpace.distributed.workers import SECONDS_TO_END, Worker, end_in_words
from outpace.server.wire import Frames, FromEngine, Start, ToEngine, pack

ENVIRONMENT = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""On a CPU PyTorch and oneDNN keep a compiled product for every shape that they met, 1,024 of them each, which is
hundreds of megabytes once prompts of all lengths have come. What decodes is a few dozen shapes. The user's own
environment wins."""


class _Line(asyncio.Protocol):
    """The socket to a process. What comes is heard in the turn of the loop that brings it: whoever waited for a stream
    of it would be woken in the next."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises what hearing raised; whoever gives up waiting for it hears no more."""
        self.hear: Callable[[FromEngine], None]
        self._frames: Frames[FromEngine] = Frames(FromEngine)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's classes
        self.transport.pause_reading()  # until somebody hears

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            for message in self._frames.feed(data):
                self.hear(message)
        except Exception as error:
            self.ended.set_exception(error)
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Child:
    """A running engine process: a `Worker` whose socket an event loop reads. `start` makes one.

    Attributes:
        pid: its process id.
    """

    def __init__(self, worker: Worker, line: _Line) -> None:
        self.pid = worker.pid
        self._worker = worker
        self._line = line

    @classmethod
    async def start(cls, settings: Start) -> Child:
        """A process that hears `settings` first.

        Raises:
            OSError: no process can be started.
        """
        worker = Worker("outpace.server.engine_process.process", defaults=ENVIRONMENT)
        try:
            _, line = await asyncio.get_running_loop().create_connection(_Line, sock=worker.connection)
        except BaseException:
            worker.connection.close()
            worker.kill()  # it may not have come as far as to notice
            raise
        child = cls(worker, line)
        child.send(settings)
        return child

    def send(self, message: ToEngine) -> None:
        """Hands a message over. What a dead process was to hear is lost.

        Raises:
            WireError: it is too large.
        """
        frame = pack(message)
        if not self._line.transport.is_closing():
            self._line.transport.write(frame)

    async def listen(self, hear: Callable[[FromEngine], None]) -> None:
        """Has `hear` told what it says, until it hangs up.

        Raises:
            WireError: it said something that is no message.
            Exception: what `hear` raised, after which nothing more is heard.
        """
        self._line.hear = hear
        self._line.transport.resume_reading()
        await self._line.ended

    def kill(self) -> None:
        """Ends it at once, and the ranks that it started: one that hangs would not notice, and keep its memory."""
        self._worker.kill()

    async def end(self) -> str:
        """Hangs up, which ends it, kills it if that does not help, and says how it ended."""
        self._line.transport.close()
        if how := await self._how_it_ended():
            return how
        self.kill()
        if await self._how_it_ended():
            return f"was killed, since it had not ended {SECONDS_TO_END:g} s after it was told to"
        return f"cannot be killed (pid {self.pid}): its driver may hang"

    async def _how_it_ended(self) -> str | None:
        """As `Worker.how_it_ended`, while the event loop goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_END):
                return end_in_words(await asyncio.wrap_future(self._worker.ended))
        return None
