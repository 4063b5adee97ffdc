"""One engine process, seen from its parent: started, spoken to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from outpace.distributed.workers import SECONDS_TO_END, Worker, end_in_words
from outpace.server.wire import Frames, FromEngine, Start, ToEngine, pack

READ_BYTES = 1 << 18
ENVIRONMENT = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""On a CPU PyTorch and oneDNN keep a compiled product for every shape that they met, 1,024 of them each, which is
hundreds of megabytes once prompts of all lengths have come. What decodes is a few dozen shapes. The user's own
environment wins."""


class Child:
    """A running engine process: a `Worker` whose socket an event loop reads. `start` makes one.

    Attributes:
        pid: its process id.
    """

    def __init__(self, worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = worker.pid
        self._worker = worker
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, settings: Start) -> Child:
        """A process that hears `settings` first.

        Raises:
            OSError: no process can be started.
        """
        worker = Worker("outpace.server.engine_process.process", defaults=ENVIRONMENT)
        try:
            reader, writer = await asyncio.open_connection(sock=worker.connection)
        except BaseException:
            worker.connection.close()
            worker.kill()  # it may not have come as far as to notice
            raise
        child = cls(worker, reader, writer)
        child.send(settings)
        return child

    def send(self, message: ToEngine) -> None:
        """Hands a message over. What a dead process was to hear is lost.

        Raises:
            WireError: it is too large.
        """
        frame = pack(message)
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def messages(self) -> AsyncIterator[FromEngine]:
        """What it says, until it hangs up.

        Raises:
            WireError: it said something that is no message.
        """
        frames: Frames[FromEngine] = Frames(FromEngine)
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(READ_BYTES):
                for message in frames.feed(data):
                    yield message

    def kill(self) -> None:
        """Ends it at once, and the ranks that it started: one that hangs would not notice, and keep its memory."""
        self._worker.kill()

    async def end(self) -> str:
        """Hangs up, which ends it, kills it if that does not help, and says how it ended."""
        self._writer.close()
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
