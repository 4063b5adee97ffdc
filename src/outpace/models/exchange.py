"""Parts exchanged through memory that all ranks map: opened, and tried against the library's bits before it is used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outpace.distributed.group import Group
from outpace.distributed.symmetric import Window, agree, attempt, open_window

PATIENCE_S = 40.0
"""For the first exchanges, in which every rank compiles the kernels."""
EPS = 1e-5
"""Of the norms that it is tried with."""


class PeerExchange:
    """The `Exchange` of `kernels.gpu.exchange`, over memory that all ranks map. Calls must be in one stream.

    Args:
        group: the ranks.
        window: their memory.
        device: this rank's.
    """

    def __init__(self, group: Group, window: Window, device: torch.device) -> None:
        from outpace.kernels.gpu import exchange, exchange_norm

        self._kernel, self._norm_kernel = exchange, exchange_norm
        self._stop = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._memory: dict[str, Any] = {"addresses": window.addresses, "stop": self._stop, "rank": group.rank}
        self._window, self._calls = window, group.calls
        self._epochs = torch.zeros(exchange.PROGRAMS, dtype=torch.int32, device=device)
        self._norm_epochs = torch.zeros(exchange_norm.ROWS, dtype=torch.int32, device=device)
        self.max_bytes = 0
        """Of a part: up to here it is the faster one."""
        self.norms = True
        """Whether the norm behind a sum is part of its kernel."""
        self.why_norm_apart: str | None = None

    def fits(self, num_elements: int, dtype: torch.dtype) -> bool:
        """Whether it can gather such a part, slower than the library or not."""
        return num_elements <= self._kernel.MAX_ELEMENTS and dtype.itemsize in (2, 4) and dtype.is_floating_point

    def takes(self, num_elements: int, dtype: torch.dtype) -> bool:
        """See `Exchange`."""
        return self.fits(num_elements, dtype) and num_elements * dtype.itemsize <= self.max_bytes

    def gather(self, part: Tensor, dtype: torch.dtype, *, joins: bool = False) -> Tensor:
        """See `Exchange`."""
        with self._calls:
            out: Tensor = self._kernel.exchange(part, dtype, joins=joins, epochs=self._epochs, **self._memory)
        return out

    def adds(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """See `Exchange`."""
        fits = num_rows <= self._norm_kernel.ROWS and num_columns <= self._norm_kernel.COLUMNS
        return self.norms and fits and self.takes(num_rows * num_columns, dtype)

    def add_and_norm(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `Exchange`."""
        with self._calls:
            found: tuple[Tensor, Tensor] = self._norm_kernel.exchange_and_norm(
                x, part, weight, eps, epochs=self._norm_epochs, **self._memory
            )
        return found

    def stop(self) -> None:
        """See `Exchange`."""
        self._stop.fill_(1)


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
    return torch.stack(add_rms_norm(x, gathered, weight, EPS))


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
        found_rows.append(torch.stack(exchange.add_and_norm(x, part, weight, EPS)))
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
