"""What other programs took of this machine while something was measured.

Linux tells how long all cores were busy since the start of the machine; what this process did not use of that, others
did. A virtual machine's neighbours count among them, as far as it is told of the time that they take (`steal`).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = slice(3, 5)
"""Among the counts of a line of `/proc/stat`: idle, and idle while a disk is waited for."""
GUESTS = 8
"""From here on are counts that others hold too."""
CROWDED = 0.15
"""Of the cores that this process may use: with more than this taken, speeds are those of the neighbours too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds up to a moment."""

    at_s: float
    busy_s: float | None
    """Of all cores together; None where the system does not tell."""
    own_s: float
    """Of this process, on all of its cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What others keep busy, on average."""

    cores: float
    of: int
    """Cores of the machine."""
    own: int
    """Cores that this process may use."""

    @property
    def crowded(self) -> bool:
        """They leave this process clearly less than it may use."""
        return self.cores - (self.of - self.own) > CROWDED * self.own

    def __str__(self) -> str:
        return f"{self.cores:.1f} of {self.of} cores"


def read() -> Reading:
    """Now."""
    return Reading(time.perf_counter(), _busy_s(), time.process_time())


def taken(before: Reading, after: Reading) -> Taken | None:
    """By others in between; None where the system does not tell."""
    if before.busy_s is None or after.busy_s is None or after.at_s <= before.at_s:
        return None
    busy, own = after.busy_s - before.busy_s, after.own_s - before.own_s
    return _taken((busy - own) / (after.at_s - before.at_s))


def taken_now(seconds: float) -> Taken | None:
    """By others, watched for so long; elsewhere than on Linux the load of the last minute, and None without one."""
    before = read()
    time.sleep(seconds)
    found = taken(before, read())
    return found if found is not None or not hasattr(os, "getloadavg") else _taken(os.getloadavg()[0])


def _taken(cores: float) -> Taken:
    """Clocks that are read one after the other may disagree: nobody takes less than none, or more than there are."""
    of = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else of
    return Taken(cores=min(max(0.0, cores), of), of=of, own=own)


def _busy_s() -> float | None:
    try:
        name, *counts = STAT.read_text(encoding="ascii").partition("\n")[0].split()
        ticks = [int(count) for count in counts][:GUESTS]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - sum(ticks[IDLE])) / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
