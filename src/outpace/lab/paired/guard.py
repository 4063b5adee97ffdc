"""Whether the machine was the same all along: clocks, throttling, and a yardstick of fixed work.

Only this machine is seen: for a server elsewhere it tells about the client alone. A block in which something was
throttled by heat or by the power supply does not count; a lower clock alone excludes nothing, since a contender that
draws more power may bring it about itself, and that is a part of its speed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outpace.fingerprint import nvidia

UNWANTED = {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"}
"""Of `nvidia.THROTTLES`, what no workload should meet; a power cap is ordinary."""
WAIT_S = 20.0
"""For nvidia-smi."""
GPU_FIELDS = ("clocks.sm", nvidia.REASONS, "temperature.gpu", "power.draw")
CPU_COUNTS = "cpu*/thermal_throttle/core_throttle_count"
WORK = 20_000
"""Additions of the yardstick: a millisecond or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """At a moment; None is what nvidia-smi does not say."""

    clock_mhz: float | None
    throttle_reasons: tuple[str, ...] | None
    """By their names in `nvidia.THROTTLES`."""
    temperature_c: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of this machine at a moment."""

    yardstick_s: float = 0.0
    """A fixed piece of work of one core; the fastest of three."""
    cpu_throttled: int = 0
    """How often cores were throttled since the machine was started; 0 where nothing counts it."""
    gpus: tuple[Gpu, ...] = ()


def read_state() -> State:
    """Now."""
    return State(
        yardstick_s=min(_yardstick() for _ in range(3)),
        cpu_throttled=_cpu_throttled(Path("/sys/devices/system/cpu")),
        gpus=_gpus(),
    )


def throttled(states: Sequence[State]) -> str | None:
    """What was throttled meanwhile; None if nothing."""
    for state in states:
        for number, gpu in enumerate(state.gpus):
            for reason in gpu.throttle_reasons or ():
                if reason in UNWANTED:
                    return f"GPU {number} was throttled: {reason}"
    counts = [state.cpu_throttled for state in states]
    return "the processor was throttled by heat" if counts and counts[-1] > counts[0] else None


def _gpus() -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            clock_mhz=_number(gpu.get("clocks.sm")),
            throttle_reasons=tuple(gpu["throttle_reasons"]) if "throttle_reasons" in gpu else None,
            temperature_c=_number(gpu.get("temperature.gpu")),
            power_w=_number(gpu.get("power.draw")),
        )
        for gpu in nvidia.gpus(GPU_FIELDS, wait_s=WAIT_S)
    )


def _number(text: str | None) -> float | None:
    """Before its unit."""
    try:
        return float((text or "").split()[0])
    except (ValueError, IndexError):
        return None


def _cpu_throttled(root: Path) -> int:
    total = 0
    for path in root.glob(CPU_COUNTS):
        try:
            total += int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return total


def _yardstick() -> float:
    began, total = time.perf_counter(), 0
    for number in range(WORK):
        total += number
    return time.perf_counter() - began
