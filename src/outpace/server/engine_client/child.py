"""One engine process, seen from its parent: started, spoken to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

from outpace.distributed.process import OWN_GROUP, command
from outpace.server.wire import Frames, FromEngine, Start, ToEngine, pack

READ_BYTES = 1 << 18
SECONDS_TO_END = 5.0
SECONDS_BETWEEN_LOOKS = 0.01
"""Whether it has ended."""
ENVIRONMENT = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""On a CPU PyTorch and oneDNN keep a compiled product for every shape that they met, 1,024 of them each, which is
hundreds of megabytes once prompts of all lengths have come. What decodes is a few dozen shapes. The user's own
environment wins."""


class Child:
    """A running engine process. `start` makes one.

    Attributes:
        pid: its process id.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, settings: Start) -> Child:
        """A fresh Python that inherits one socket and this environment, and hears `settings` first.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process = subprocess.Popen(  # not asyncio's: other event loops, as Ray Serve's, start none in its own group
                command("outpace.server.engine_process.process", theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                env=ENVIRONMENT | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # stdout is not for what an engine says
                process_group=OWN_GROUP,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer)
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def end(self) -> str:
        """Hangs up, which ends it, kills it if that does not help, and says how it ended."""
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_END):
                how = _how_it_ended(await self._end())
                self.kill()
                return how
        self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_END):
                await self._end()
                return f"was killed, since it had not ended {SECONDS_TO_END:g} s after it was told to"
        return f"cannot be killed (pid {self.pid}): its driver may hang"

    async def _end(self) -> int:
        """Waits for it; as `Popen.wait`."""
        while (code := self._process.poll()) is None:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        return code


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code}{' (out of memory?)' if code == -9 else ''}"
