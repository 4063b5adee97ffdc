"""What the device reaches at its best: bytes copied and products a second, measured rather than taken from a sheet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from outpace.lab.written import significant

COPY_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
"""Size of one copy, far beyond the caches."""
MATRIX_SIZE = {"cuda": 8192, "cpu": 512}
NUM_TIMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one device."""

    copy_bytes_s: float
    """Bytes read plus bytes written a second."""
    matrix_flops_s: float
    """bf16 operations a second in a product of square matrices."""

    def as_dict(self) -> dict[str, float]:
        return {
            "copy_gb_s": significant(self.copy_bytes_s / 1e9),
            "matrix_tflops": significant(self.matrix_flops_s / 1e12),
        }


def measure_rates(device: torch.device) -> Rates:
    """Takes 8 GiB of a GPU's memory, or half a GiB of the host's, for a moment."""
    return Rates(
        copy_bytes_s=copy_rate(device, COPY_BYTES[device.type]),
        matrix_flops_s=matrix_rate(device, MATRIX_SIZE[device.type]),
    )


def copy_rate(device: torch.device, num_bytes: int) -> float:
    """Bytes per second of a copy within the device, read and written ones counted."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds_of(lambda: target.copy_(source), device)


def matrix_rate(device: torch.device, size: int) -> float:
    """Operations per second of a bf16 product of two size × size matrices, 2 · size³ each."""
    a = torch.randn(size, size, device=device).bfloat16()
    b = torch.randn(size, size, device=device).bfloat16()
    out = torch.empty_like(a)
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b, out=out), device)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Median time of something that the device does; on a GPU by its own clock. It runs twice before, untimed."""
    for _ in range(2):
        run()
    if device.type != "cuda":
        return median(_on_host(run) for _ in range(NUM_TIMED))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(NUM_TIMED + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize(device)
    return median(float(events[i].elapsed_time(events[i + 1])) for i in range(NUM_TIMED)) / 1e3


def _on_host(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
