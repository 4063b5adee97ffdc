"""How much of the time the device did nothing, from a profiler's trace of its kernels.

Copies do not count as work: while tokens travel to the host, the next cycle's kernels should be running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outpace.errors import EngineError
from outpace.lab.profile.kineto import rows_of, tracing
from outpace.lab.profile.parts import FIRST_OF_FORWARD, LAST_OF_CYCLE
from outpace.lab.profile.wall import Ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Shares of the time from the first kernel to the last."""

    device: float
    """No kernel ran."""
    between_cycles: float
    """None ran, and a cycle had been settled while the next one's first forward had not begun."""
    num_cycles: int

    def as_dict(self) -> dict[str, float]:
        return {
            "device": round(self.device, 5),
            "between_cycles": round(self.between_cycles, 5),
            "cycles": self.num_cycles,
        }


def trace_idle(run: Callable[[], object]) -> Idle:
    """What the device did while `run` decoded.

    Raises:
        EngineError: the trace shows no cycle: the profiler cannot see the device, or nothing was decoded.
    """
    with tracing() as trace:
        run()
    kernels = [row for row in rows_of(trace) if not row.name.startswith(("Memcpy", "Memset"))]
    return idle_of(kernels)


def idle_of(kernels: Iterable[Ran]) -> Idle:
    """Shares of idle time among kernels, which may overlap and come in any order.

    Raises:
        EngineError: fewer than two of them ended a cycle.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.began)
    cycles = sum(kernel.name == LAST_OF_CYCLE for kernel in ordered)
    if cycles < 2:
        raise EngineError(f"a trace of {len(ordered)} kernels shows {cycles} whole cycles; it takes two to see a gap")
    ended, idle, between, settled = ordered[0].began, 0.0, 0.0, False
    for kernel in ordered:
        gap = max(0.0, kernel.began - ended)
        idle += gap
        between += gap if settled else 0.0
        settled = kernel.name == LAST_OF_CYCLE or (settled and kernel.name != FIRST_OF_FORWARD)
        ended = max(ended, kernel.ended)
    whole = ended - ordered[0].began
    return Idle(device=idle / whole, between_cycles=between / whole, num_cycles=cycles)
