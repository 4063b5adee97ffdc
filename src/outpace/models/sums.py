"""Who brings the ranks' parts together, measured when they meet: symmetric memory up to some size, the library beyond.

Both gather in rank order, so that the choice moves time and no bit. It falls back to the library, and says why, where
ranks cannot map each other's memory, or where the kernel does not give the library's bits here. Every decision is the
first rank's, or all ranks' together: none follows a clock of one rank alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from outpace.distributed.group import Group
from outpace.distributed.symmetric import Window, agree, attempt, open_window

Sums = Literal["auto", "library"]

SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 19)
"""Elements of a part, of two bytes: a token of 4,096, and as much as the exchange takes."""
CALLS, ROUNDS = 32, 6
"""In one graph; and passes over all kinds, which take turns."""
CLEARLY = 0.97
"""Of the library's time: what is not clearly faster is left to it."""
PATIENCE_S = 30.0
"""For the first exchanges, in which every rank compiles the kernel."""

Call = Callable[[Tensor], Tensor]


class PeerExchange:
    """Gathers through memory that all ranks map; see `kernels.gpu.exchange`. Calls must be in one stream.

    Args:
        group: the ranks.
        window: their memory.
        device: this rank's.
    """

    def __init__(self, group: Group, window: Window, device: torch.device) -> None:
        from outpace.kernels.gpu import exchange

        self._run, self._most = exchange.exchange, exchange.MAX_ELEMENTS
        self._rank, self._window = group.rank, window
        self._epochs = torch.zeros(exchange.PROGRAMS, dtype=torch.int32, device=device)
        self._stop = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.max_bytes = 0
        """Of a part: up to here it is the faster one."""

    def fits(self, num_elements: int, dtype: torch.dtype) -> bool:
        """Whether it can gather such a part, slower than the library or not."""
        return num_elements <= self._most and dtype.itemsize in (2, 4) and dtype.is_floating_point

    def takes(self, num_elements: int, dtype: torch.dtype) -> bool:
        """See `Exchange`."""
        return self.fits(num_elements, dtype) and num_elements * dtype.itemsize <= self.max_bytes

    def gather(self, part: Tensor, dtype: torch.dtype, *, joins: bool = False) -> Tensor:
        """See `Exchange`."""
        memory = {"addresses": self._window.addresses, "epochs": self._epochs, "stop": self._stop}
        out: Tensor = self._run(part, dtype, rank=self._rank, joins=joins, **memory)
        return out

    def stop(self) -> None:
        """See `Exchange`."""
        self._stop.fill_(1)


def settle(group: Group, device: torch.device, asked: Sums = "auto") -> Group:
    """The group with what gathers fastest. All ranks call this together, before any graph is captured."""
    if group.size == 1:
        return group
    found: PeerExchange | str = "sums = library asks for none"
    if asked == "auto":
        found = open_exchange(group, device)
    if isinstance(found, str):
        return replace(group, sums={"symmetric_up_to_bytes": 0, "why_not_symmetric": found, "measured": []})
    measured = measure(group, device, kinds(group, found), SIZES)
    limit = torch.tensor([limit_of(measured)], dtype=torch.int64, device=device)
    found.max_bytes = int(group.by_library(limit)[0, 0])  # the first rank's
    why = None if found.max_bytes else "the library is as fast at every size"
    said = {"symmetric_up_to_bytes": found.max_bytes, "why_not_symmetric": why, "measured": measured}
    return replace(group, exchange=found if found.max_bytes else None, sums=said)


def kinds(group: Group, exchange: PeerExchange) -> dict[str, Call]:
    """Ways to bring parts together, by name. The first two give every rank all parts, the last one their sum."""
    return {
        "symmetric": lambda part: exchange.gather(part, part.dtype),
        "gather": group.by_library,
        "all_reduce": group.all_reduce,
    }


def limit_of(measured: Sequence[dict[str, Any]]) -> int:
    """Bytes of a part up to which the exchange was clearly faster than the library's gathering, at all sizes.

    The library's all-reduce is shown beside them and not chosen from: its bits depend on how many rows are summed.
    """
    limit = 0
    for row in measured:
        if row["symmetric_us"] > CLEARLY * row["gather_us"]:
            break
        limit = row["bytes"]
    return limit


def measure(group: Group, device: torch.device, calls: dict[str, Call], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Microseconds of one call within a graph, by size; this rank's medians."""
    rows = []
    for size in sizes:
        part = torch.zeros(size, dtype=torch.bfloat16, device=device)
        graphs = {name: _graph(call, part) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(ROUNDS):
            for name, graph in graphs.items():
                times[name].append(_us(group, device, graph) / CALLS)
        medians = {f"{name}_us": round(median(found), 2) for name, found in times.items()}
        rows.append({"bytes": size * part.element_size(), **medians})
    return rows


def _graph(call: Call, part: Tensor) -> torch.cuda.CUDAGraph:
    call(part)
    torch.cuda.synchronize(part.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's threads are at work
        for _ in range(CALLS):
            call(part)
    graph.replay()
    return graph


def _us(group: Group, device: torch.device, graph: torch.cuda.CUDAGraph) -> float:
    """Of a replay, which ranks begin together."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    group.all_reduce(torch.zeros(1, device=device))
    began.record()
    graph.replay()
    ended.record()
    torch.cuda.synchronize(device)
    milliseconds: float = began.elapsed_time(ended)
    return 1e3 * milliseconds


def open_exchange(group: Group, device: torch.device) -> PeerExchange | str:
    """One that was seen to give the library's bits, its `max_bytes` 0, or why there is none: every rank is answered
    alike. All ranks call this together."""
    if device.type != "cuda":
        return "there is no symmetric memory without GPUs"
    from outpace.kernels.gpu.exchange import num_bytes

    window = open_window(group, device, num_bytes(group.size))
    if isinstance(window, str):
        return window
    exchange = PeerExchange(group, window, device)
    parts = _samples(group, device)
    expected = [group.by_library(part.sum(0).to(torch.bfloat16)) for part in parts]
    torch.cuda.synchronize(device)
    found, why = attempt(lambda: _tried(exchange, parts, device))
    if found is not None and not all(map(torch.equal, found, expected)):
        why = "it gave other bits than the library"
    if why := agree(group, device, why):
        exchange.stop()
        return why
    return exchange


def _samples(group: Group, device: torch.device) -> list[Tensor]:
    """Pairs of summands of many sizes, twice."""
    generator = torch.Generator(device).manual_seed(1 + group.rank)
    sizes = (1 << 12, 1000, 1 << 19, 7168, 1 << 16)
    return [torch.randn(2, size, generator=generator, device=device) for size in (*sizes, *sizes)]


def _tried(exchange: PeerExchange, parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """What came out.

    Raises:
        RuntimeError: it had not ended in `PATIENCE_S`.
    """
    found = [exchange.gather(part, torch.bfloat16, joins=True) for part in parts]
    done = torch.cuda.Event()
    done.record()
    deadline = time.monotonic() + PATIENCE_S
    while not done.query():
        if time.monotonic() > deadline:
            exchange.stop()
            torch.cuda.synchronize(device)
            raise RuntimeError(f"ranks still waited for each other after {PATIENCE_S:.0f} s")
        time.sleep(1e-4)
    return found
