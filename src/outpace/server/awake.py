"""Cores that do not sleep while somebody waits for an answer.

A core that has nothing to do for a fraction of a millisecond sleeps, and its caches may be emptied meanwhile. To wake
takes it up to some tenths of a millisecond, and a request wakes several, one after the other. Linux lets whoever may
write to a device say how long waking may take. That counts for the whole machine, as long as the device is held open.
"""

from __future__ import annotations

import asyncio
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outpace.errors import ConfigError
from outpace.wording import reason

DEVICE = Path("/dev/cpu_dma_latency")
AWAKE, ASLEEP = 0, 2_000_000_000
"""Microseconds that waking may take: none, and as many as the kernel's default."""


class Awake:
    """Keeps the machine's cores awake from the first answer's begin on until some time after the last one's end; at the
    latest until nobody has this object any more.

    Args:
        seconds: after the last one.
        device: where the kernel is told.

    Raises:
        ConfigError: it cannot be told.
    """

    def __init__(self, seconds: float, device: Path = DEVICE) -> None:
        self._seconds = seconds
        self._num_answered = 0
        self._sleeping: asyncio.TimerHandle | None = None
        try:
            self._told = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._told)
            self._tell(ASLEEP)
        except OSError as error:
            raise ConfigError(
                f"awake is {seconds:g}, but {device} cannot be written to: {reason(error)}; serve as root, let the "
                "user that serves write to it, or leave awake out"
            ) from error

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Something is being answered inside."""
        if self._sleeping is not None:
            self._sleeping.cancel()
            self._sleeping = None
        elif not self._num_answered:
            self._tell(AWAKE)
        self._num_answered += 1
        try:
            yield
        finally:
            self._num_answered -= 1
            if not self._num_answered:
                self._sleeping = asyncio.get_running_loop().call_later(self._seconds, self._sleep)

    def _sleep(self) -> None:
        self._sleeping = None
        self._tell(ASLEEP)

    def _tell(self, microseconds: int) -> None:
        os.write(self._told, struct.pack("i", microseconds))
