"""How long what ranks do together takes, launched one by one or as one graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from outpace.distributed.group import Group


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """What `run` launches, as one graph: its replay. Run it once before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's threads are at work
        run()
    return graph.replay


def time_us(run: Callable[[], object], group: Group, device: torch.device) -> float:
    """Microseconds of `run`, which ranks begin together; on a GPU those of the device."""
    group.all_reduce(torch.zeros(1, device=device))
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - began)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize(device)
    milliseconds: float = start.elapsed_time(end)
    return 1e3 * milliseconds
