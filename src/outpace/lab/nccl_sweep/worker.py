"""One rank of one measurement, a process that was started with the settings to be tried."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from outpace.distributed import nccl
from outpace.distributed.group import Group
from outpace.distributed.pipe import Pipe, PipeClosed
from outpace.distributed.rendezvous import device_of, join, leave, reach_store
from outpace.distributed.timing import captured, time_us
from outpace.engine.devices import DTYPES
from outpace.lab.nccl_sweep.orders import Cell, Failed, Job, Mode, Operation, Timed
from outpace.lab.timing.collectives import CALLS

REPEATS = 15
_SAID = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.+?)\.?\s*$", re.MULTILINE)


def main(descriptor: int) -> None:
    """Measures once and ends."""
    pipe: Pipe[Job] = Pipe(socket.socket(fileno=descriptor), Job)
    with suppress(PipeClosed):  # nobody waits for the answer any more
        job = pipe.receive()
        try:
            pipe.send(_timed(job))
        except PipeClosed:
            raise
        except Exception as error:
            pipe.send(Failed(message=f"{type(error).__name__}: {error}"[:2000]))
            os._exit(1)  # NCCL may not come back from an orderly end
    leave()


def said_by_nccl(log: str) -> dict[str, str]:
    """Settings that a log with NCCL_DEBUG=INFO names as taken from the environment."""
    return {name: value for name, value in _SAID.findall(log) if not name.startswith("NCCL_DEBUG")}


@torch.inference_mode()
def _timed(job: Job) -> Timed:
    device = device_of(torch.device(job.device), job.rank, job.size)
    group = join(reach_store(job.port), job.rank, job.size, device)
    cells = [
        cell
        for rows in job.rows
        for operation in ("gather", "all_reduce")
        for cell in _cells(group, device, operation, rows, job)
    ]
    log = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
    said = said_by_nccl(Path(log).read_text(errors="replace")) if log and Path(log).is_file() else {}
    return Timed(observed=nccl.observed(), said=said, cells=tuple(cells))


def _cells(group: Group, device: torch.device, operation: Operation, rows: int, job: Job) -> list[Cell]:
    part = torch.zeros((rows, job.hidden), dtype=DTYPES[job.dtype], device=device)
    call: Callable[[Tensor], Tensor] = group.by_library if operation == "gather" else group.all_reduce

    def run() -> None:
        for _ in range(CALLS):
            call(part)

    run()
    modes: dict[Mode, Callable[[], None]] = {"eager": run}
    if device.type == "cuda":
        modes["graph"] = captured(run)
    return [
        Cell(operation=operation, rows=rows, mode=mode, us=round(_median_us(launched, group, device), 3))
        for mode, launched in modes.items()
    ]


def _median_us(run: Callable[[], None], group: Group, device: torch.device) -> float:
    return median([time_us(run, group, device) / CALLS for _ in range(2 + REPEATS)][2:])
