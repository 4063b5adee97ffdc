"""The server as a process: its log, its memory, its end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLAGS = ("--dtype", "float32", "--max-rows", "16", "--request-timeout", "60", "--max-restarts", "10", "--port", "0")


class Server:
    """A running `outpace serve`, and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.memory: list[tuple[float, int, int]] = []
        """(time, bytes of the server, bytes of the engine)."""
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, model: str, flags: Sequence[str]) -> Server:
        words = ("-m", "outpace.cli.main", "serve", model, "--served-name", "soak", *FLAGS, *flags)
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
        server = cls(process)
        await server.event("engine ready")
        return server

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            if line.startswith(b"{"):
                event = json.loads(line)
                if event["event"] != "request" or event["status"] >= 500:
                    self.events.append(event)
            else:
                sys.stderr.buffer.write(line)

    async def event(self, name: str) -> dict[str, Any]:
        while not (found := [event for event in self.events if event["event"] == name]):
            if self.process.returncode is not None:
                raise SystemExit(f"the server ended with exit code {self.process.returncode}")
            await asyncio.sleep(0.05)
        return found[-1]

    async def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        code = await self.process.wait()
        await self._reading
        return code


def resident(pid: int) -> int:
    """Bytes of a process in memory; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
