"""Nobody sleeps while somebody waits for an answer.

A core that has nothing to do for a fraction of a millisecond sleeps, and its caches may be emptied meanwhile. To wake
takes it up to some tenths of a millisecond, and a request wakes several, one after the other. Linux lets whoever may
write to a device say how long waking may take. That counts for the whole machine, as long as the device is held open,
and only where the kernel has a driver that puts cores to sleep. In most virtual machines it has none: their host does
it, whenever a core waits. There `looking` helps, for two cores.
"""

from __future__ import annotations

import asyncio
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from outpace.errors import ConfigError
from outpace.wording import reason

DEVICE = Path("/dev/cpu_dma_latency")
AWAKE, ASLEEP = 0, 2_000_000_000
"""Microseconds that waking may take: none, and as many as the kernel's default."""
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
"""Which driver puts cores to sleep; "none" if there is none."""


def kernel_decides(driver: Path = DRIVER) -> bool:
    """Whether this machine's kernel puts cores to sleep itself, so that it can be told not to."""
    try:
        return driver.read_text().strip() not in ("", "none")
    except OSError:
        return False


class Keeper(Protocol):
    """What keeps somebody from sleeping."""

    def wake(self) -> None:
        """From now on nobody sleeps."""

    def rest(self) -> None:
        """From now on they may."""


class Latency:
    """Tells the kernel how long cores may take to wake; the machine's default if nobody has this object any more.

    Raises:
        ConfigError: the kernel cannot be told.
    """

    def __init__(self, device: Path = DEVICE) -> None:
        try:
            self._told = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._told)
            self.rest()
        except OSError as error:
            raise ConfigError(
                f"{device} cannot be written to: {reason(error)}; serve as root, let the user that serves write to it, "
                "or leave awake out"
            ) from error

    def wake(self) -> None:
        self._tell(AWAKE)

    def rest(self) -> None:
        self._tell(ASLEEP)

    def _tell(self, microseconds: int) -> None:
        os.write(self._told, struct.pack("i", microseconds))


class Awake:
    """Lets nobody sleep from the first answer's begin on until some time after the last one's end.

    Args:
        seconds: after the last one.
        keeper: what keeps them awake.
        pays: whether it is worth while; asked at each answer's begin, until it is.
    """

    def __init__(self, seconds: float, keeper: Keeper, pays: Callable[[], bool] = lambda: True) -> None:
        self._seconds = seconds
        self._keeper = keeper
        self._pays = pays
        self._num_answered = 0
        self._woke = False
        self._resting: asyncio.TimerHandle | None = None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Something is being answered inside."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if not self._woke and self._pays():
            self._keeper.wake()
            self._woke = True
        self._num_answered += 1
        try:
            yield
        finally:
            self._num_answered -= 1
            if not self._num_answered:
                self._resting = asyncio.get_running_loop().call_later(self._seconds, self._rest)

    def _rest(self) -> None:
        self._resting = None
        self._keeper.rest()
        self._woke = False
