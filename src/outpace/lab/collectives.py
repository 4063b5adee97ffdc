"""What one sum over ranks takes, by kind and size, launched one by one and within a graph.

    gather      parts gathered by the library, added by the norm behind them: what serving does for few tokens
    all-reduce  the library's (NCCL or gloo)
    one-shot    PyTorch symmetric memory: every rank reads all parts
    two-shot    PyTorch symmetric memory: every rank sums a share and writes it to all
    multimem    PyTorch symmetric memory: the switch sums; only where multicast is on

A kind that does not run here says why. Each is checked against the sum that it should give.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from outpace.distributed.group import Group

CALLS = 64
"""In one graph or one run of launches: as many as 32 layers have."""
REPEATS = 15

Sum = Callable[[], Tensor]


def time_sums(group: Group, device: torch.device, num_tokens: int, hidden: int, dtype: torch.dtype) -> dict[str, Any]:
    """Microseconds of one sum of [num_tokens, hidden] by kind; every rank calls this, and all see the same kinds."""
    found: dict[str, Any] = {}
    for name, make in _kinds(device).items():
        part = torch.full((num_tokens, hidden), group.rank + 1.0, dtype=dtype, device=device)
        try:
            call = make(group, part)
            expected = group.size * (group.size + 1) / 2
            if not bool((call().float() == expected).all()):
                raise RuntimeError("it gave a wrong sum")
            found[name] = {"eager_us": _us(call, group, device)}
            if device.type == "cuda":
                found[name]["graph_us"] = _us_in_graph(call, group, device)
        except (RuntimeError, AttributeError, TypeError) as error:
            found[name] = {"why_none": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return found


def _kinds(device: torch.device) -> dict[str, Callable[[Group, Tensor], Sum]]:
    kinds: dict[str, Callable[[Group, Tensor], Sum]] = {"gather": _gather, "all-reduce": _all_reduce}
    if device.type == "cuda":
        kinds |= {"one-shot": _one_shot, "two-shot": _two_shot, "multimem": _multimem}
    return kinds


def _gather(group: Group, part: Tensor) -> Sum:
    first = group.gather(part).float().sum(0)
    last = [first]

    def call() -> Tensor:
        last[0] = group.gather(part)
        return first

    return call


def _all_reduce(group: Group, part: Tensor) -> Sum:
    """Into a fresh sum the first time; over and over on zeros after that, which takes as long."""
    zeros = torch.zeros_like(part)
    sums = [group.all_reduce(part.clone())]

    def call() -> Tensor:
        return sums.pop() if sums else group.all_reduce(zeros)

    return call


def _in_symmetric_memory(group: Group, part: Tensor) -> tuple[Tensor, Any, str]:
    assert group.handle is not None
    name = group.handle.group_name
    buffer = symmetric.empty(part.shape, dtype=part.dtype, device=part.device)
    handle = symmetric.rendezvous(buffer, name)
    buffer.copy_(part)
    return buffer, handle, name


def _one_shot(group: Group, part: Tensor) -> Sum:
    buffer, _, name = _in_symmetric_memory(group, part)
    return lambda: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", name)


def _in_place(operation: str, buffer: Tensor, name: str) -> Sum:
    """The first sum is kept; zeros are summed after that."""
    run = getattr(torch.ops.symm_mem, operation)
    run(buffer, "sum", name)
    sums = [buffer.clone()]
    dist.barrier()
    buffer.zero_()

    def call() -> Tensor:
        return sums.pop() if sums else run(buffer, "sum", name)

    return call


def _two_shot(group: Group, part: Tensor) -> Sum:
    buffer, _, name = _in_symmetric_memory(group, part)
    return _in_place("two_shot_all_reduce_", buffer, name)


def _multimem(group: Group, part: Tensor) -> Sum:
    buffer, handle, name = _in_symmetric_memory(group, part)
    if not handle.multicast_ptr:
        raise RuntimeError("multicast is off, or these GPUs have none")
    return _in_place("multimem_all_reduce_", buffer, name)


def _us(call: Sum, group: Group, device: torch.device) -> float:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return _timed(run, group, device)


def _us_in_graph(call: Sum, group: Group, device: torch.device) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    return _timed(graph.replay, group, device)


def _timed(run: Callable[[], None], group: Group, device: torch.device) -> float:
    """Microseconds of one of the calls that `run` makes."""
    times = []
    for _ in range(2 + REPEATS):
        group.all_reduce(torch.zeros(1, device=device))  # ranks begin together
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return round(1e6 * median(times[2:]) / CALLS, 3)
