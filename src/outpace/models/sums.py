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

SIZES = ((1 << 12,), (1 << 14,), (1 << 16,), (1 << 18,), (1 << 19,))
"""Elements of a part, of two bytes: a token of 4,096, and as much as the exchange takes."""
ROWS = ((1, 4096), (4, 4096), (16, 4096))
"""Shapes with which the norm is measured."""
CALLS, ROUNDS = 32, 6
"""In one graph; and passes over all kinds, which take turns."""
CLEARLY = 0.97
"""Of the library's time: what is not clearly faster is left to it."""
PATIENCE_S = 40.0
"""For the first exchanges, in which every rank compiles the kernels."""
_EPS = 1e-5

Call = Callable[[Tensor], Tensor]


class PeerExchange:
    """Gathers through memory that all ranks map; see `kernels.gpu.exchange`. Calls must be in one stream.

    Args:
        group: the ranks.
        window: their memory.
        device: this rank's.
    """

    def __init__(self, group: Group, window: Window, device: torch.device) -> None:
        from outpace.kernels.gpu import exchange, exchange_norm

        self._run, self._most = exchange.exchange, exchange.MAX_ELEMENTS
        self._run_norm, self._most_rows, self._most_columns = (
            exchange_norm.exchange_and_norm,
            exchange_norm.ROWS,
            exchange_norm.COLUMNS,
        )
        self._stop = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._memory: dict[str, Any] = {"addresses": window.addresses, "stop": self._stop, "rank": group.rank}
        self._window = window
        self._epochs = torch.zeros(exchange.PROGRAMS, dtype=torch.int32, device=device)
        self._norm_epochs = torch.zeros(exchange_norm.ROWS, dtype=torch.int32, device=device)
        self.max_bytes = 0
        """Of a part: up to here it is the faster one."""
        self.norms = True
        """Whether the norm behind a sum is part of its kernel."""
        self.why_norm_apart: str | None = None

    def fits(self, num_elements: int, dtype: torch.dtype) -> bool:
        """Whether it can gather such a part, slower than the library or not."""
        return num_elements <= self._most and dtype.itemsize in (2, 4) and dtype.is_floating_point

    def takes(self, num_elements: int, dtype: torch.dtype) -> bool:
        """See `Exchange`."""
        return self.fits(num_elements, dtype) and num_elements * dtype.itemsize <= self.max_bytes

    def gather(self, part: Tensor, dtype: torch.dtype, *, joins: bool = False) -> Tensor:
        """See `Exchange`."""
        out: Tensor = self._run(part, dtype, joins=joins, epochs=self._epochs, **self._memory)
        return out

    def adds(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """See `Exchange`."""
        fits = num_rows <= self._most_rows and num_columns <= self._most_columns
        return self.norms and fits and self.takes(num_rows * num_columns, dtype)

    def add_and_norm(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Exchange`."""
        found: tuple[Tensor, Tensor] = self._run_norm(x, part, weight, eps, epochs=self._norm_epochs, **self._memory)
        return found

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
    normed = measure(group, device, norm_kinds(found, device), ROWS) if found.norms else []
    chosen = torch.tensor([limit_of(measured), norm_pays(normed)], dtype=torch.int64, device=device)
    found.max_bytes, norms = (int(number) for number in group.by_library(chosen)[0])  # the first rank's
    found.norms = bool(norms)
    said = {
        "symmetric_up_to_bytes": found.max_bytes,
        "why_not_symmetric": None if found.max_bytes else "the library is as fast at every size",
        "norm_in_kernel": found.norms and found.max_bytes > 0,
        "why_norm_apart": found.why_norm_apart or (None if found.norms else "it is as fast in a kernel of its own"),
        "measured": measured,
        "measured_with_norm": normed,
    }
    return replace(group, exchange=found if found.max_bytes else None, sums=said)


def kinds(group: Group, exchange: PeerExchange) -> dict[str, Call]:
    """Ways to bring parts together, by name. The first two give every rank all parts, the last one their sum."""
    return {
        "symmetric": lambda part: exchange.gather(part, part.dtype),
        "gather": group.by_library,
        "all_reduce": group.all_reduce,
    }


def norm_kinds(exchange: PeerExchange, device: torch.device) -> dict[str, Call]:
    """The exchange with the norm behind it, in one kernel and in two."""
    from outpace.kernels.gpu.norm import add_rms_norm

    weight = torch.ones(ROWS[0][1], dtype=torch.bfloat16, device=device)
    return {
        "one_kernel": lambda part: exchange.add_and_norm(part, part, weight, _EPS)[0],
        "two_kernels": lambda part: add_rms_norm(part, exchange.gather(part, part.dtype), weight, _EPS)[0],
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


def norm_pays(measured: Sequence[dict[str, Any]]) -> bool:
    """Whether the norm in the exchange's kernel was faster than behind it, over all sizes."""
    one, two = (sum(row[f"{kind}_us"] for row in measured) for kind in ("one_kernel", "two_kernels"))
    return bool(one < two)


def measure(
    group: Group, device: torch.device, calls: dict[str, Call], shapes: Sequence[tuple[int, ...]]
) -> list[dict[str, Any]]:
    """Microseconds of one call within a graph, by shape of the part; this rank's medians."""
    rows = []
    for shape in shapes:
        part = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        graphs = {name: _graph(call, part) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(ROUNDS):
            for name, graph in graphs.items():
                times[name].append(_us(group, device, graph) / CALLS)
        medians = {f"{name}_us": round(median(found), 2) for name, found in times.items()}
        rows.append({"bytes": part.numel() * part.element_size(), **medians})
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
    from outpace.kernels.gpu import exchange as kernel
    from outpace.kernels.gpu import exchange_norm as norm_kernel

    window = open_window(group, device, kernel.num_bytes(group.size) + norm_kernel.num_bytes(group.size))
    if isinstance(window, str):
        return window
    exchange = PeerExchange(group, window, device)
    parts, rows = _samples(group, device)
    expected = [group.by_library(part.sum(0).to(torch.bfloat16)) for part in parts]
    expected_rows = [_normed(group.by_library(part.sum(0).to(torch.bfloat16))) for part in rows]
    torch.cuda.synchronize(device)
    found, why = attempt(lambda: _tried(exchange, parts, rows, device))
    if found is not None and not all(map(torch.equal, found[0], expected)):
        why = "it gave other bits than the library"
    if why := agree(group, device, why):
        exchange.stop()
        return why
    assert found is not None
    same = all(map(torch.equal, found[1], expected_rows))
    exchange.why_norm_apart = agree(group, device, None if same else "it gave other bits than the norm alone")
    exchange.norms = exchange.why_norm_apart is None
    return exchange


def _normed(gathered: Tensor) -> Tensor:
    """The sum of gathered parts and its norm, one above the other, as a layer makes them."""
    from outpace.kernels.gpu.norm import add_rms_norm

    x, weight = _residual(gathered[0])
    return torch.stack(add_rms_norm(x, gathered, weight, _EPS))


def _residual(like: Tensor) -> tuple[Tensor, Tensor]:
    """What is added to, the same on every rank, and a norm's weight."""
    x = torch.linspace(-1.0, 1.0, like.numel(), device=like.device).view(like.shape).to(torch.bfloat16)
    return x, torch.linspace(0.5, 1.5, like.shape[-1], device=like.device).to(torch.bfloat16)


def _samples(group: Group, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Pairs of summands of many sizes, and of many numbers of rows, each twice."""
    generator = torch.Generator(device).manual_seed(1 + group.rank)

    def made(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator, device=device)

    sizes = (1 << 12, 1000, 1 << 19, 7168, 1 << 16)
    shapes = ((1, 4096), (64, 7168), (3, 576), (8, 8192))
    return [made(size) for size in (*sizes, *sizes)], [made(*shape) for shape in (*shapes, *shapes)]


def _tried(
    exchange: PeerExchange, parts: Sequence[Tensor], rows: Sequence[Tensor], device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """What came out, of the parts and of the rows.

    Raises:
        RuntimeError: it had not ended in `PATIENCE_S`.
    """
    found = [exchange.gather(part, torch.bfloat16, joins=True) for part in parts]
    found_rows = []
    for part in rows:
        x, weight = _residual(part[0])
        found_rows.append(torch.stack(exchange.add_and_norm(x, part, weight, _EPS)))
    done = torch.cuda.Event()
    done.record()
    deadline = time.monotonic() + PATIENCE_S
    while not done.query():
        if time.monotonic() > deadline:
            exchange.stop()
            torch.cuda.synchronize(device)
            raise RuntimeError(f"ranks still waited for each other after {PATIENCE_S:.0f} s")
        time.sleep(1e-4)
    return found, found_rows
