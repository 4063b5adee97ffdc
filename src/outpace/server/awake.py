"""Cores that do not sleep while somebody waits for an answer.

A core that has nothing to do for a fraction of a millisecond sleeps, and its caches may be emptied meanwhile. To wake
takes it up to some tenths of a millisecond, and a request wakes several, one after the other. Linux lets whoever may
write to a device say how long waking may take. That counts for the whole machine, as long as the device is held open:
here until the process ends.
"""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

from outpace.errors import ConfigError
from outpace.wording import reason

DEVICE = Path("/dev/cpu_dma_latency")
AWAKE, ASLEEP = 0, 2_000_000_000
"""Microseconds that waking may take: none, and as many as the kernel's default."""


class Awake:
    """Keeps the machine's cores awake from the first request on until some time after the last one's end.

    Args:
        seconds: after the last one.
        device: where the kernel is told.

    Raises:
        ConfigError: it cannot be told.
    """

    def __init__(self, seconds: float, device: Path = DEVICE) -> None:
        self._seconds = seconds
        try:
            self._told = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"awake is {seconds:g}, but {device} cannot be opened: {reason(error)}; serve as root, let the user "
                "that serves write to it, or leave awake out"
            ) from error
        self._num_answered = 0
        self._sleeping: asyncio.TimerHandle | None = None
        self._tell(ASLEEP)

    def begin(self) -> None:
        """A request came."""
        self._num_answered += 1
        if self._sleeping is not None:
            self._sleeping.cancel()
            self._sleeping = None
        elif self._num_answered == 1:
            self._tell(AWAKE)

    def end(self) -> None:
        """It was answered."""
        self._num_answered -= 1
        if not self._num_answered:
            self._sleeping = asyncio.get_running_loop().call_later(self._seconds, self._sleep)

    def _sleep(self) -> None:
        self._sleeping = None
        self._tell(ASLEEP)

    def _tell(self, microseconds: int) -> None:
        os.write(self._told, struct.pack("i", microseconds))
