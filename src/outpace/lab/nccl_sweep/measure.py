"""One setting, measured by processes that are started with it: NCCL reads its environment once."""

from __future__ import annotations

import select
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outpace.distributed.pipe import Pipe, PipeClosed
from outpace.distributed.rendezvous import open_store
from outpace.distributed.workers import Worker, end
from outpace.lab.nccl_sweep.orders import Cell, Failed, Job, Timed
from outpace.lab.nccl_sweep.settings import Setting

LISTENING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV"}
"""NCCL then writes what it takes from the environment into a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of one setting."""

    asked: Setting
    observed: tuple[dict[str, str], ...] = ()
    """By rank, what its process sees."""
    said: tuple[dict[str, str], ...] = ()
    """By rank, what NCCL said that it took."""
    cells: tuple[Cell, ...] = ()
    """The first rank's times."""
    seconds: float = 0.0
    why_none: str | None = field(default=None)
    """Why it does not count: a rank failed or did not see what was asked for."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cells = [
            {"operation": cell.operation, "rows": cell.rows, "mode": cell.mode, "us": cell.us} for cell in self.cells
        ]
        ranks = [{"observed": seen, "said_by_nccl": said} for seen, said in zip(self.observed, self.said, strict=True)]
        asked = dict(self.asked)
        return {"asked": asked, "ranks": ranks, "cells": cells, "why_none": self.why_none, "seconds": self.seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is gathered and summed."""

    size: int
    """Ranks."""
    device: str
    rows: tuple[int, ...]
    hidden: int
    dtype: str


def measure(subject: Subject, setting: Setting, longest_s: float) -> Measured:
    """Starts a process a rank with the setting, and waits for their answers, `longest_s` at most."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outpace-nccl-") as directory:
        logs = LISTENING | {"NCCL_DEBUG_FILE": str(Path(directory) / "%p.log")} if subject.device == "cuda" else {}
        workers = [Worker("outpace.lab.nccl_sweep.worker", {**logs, **setting}) for _ in range(subject.size)]
        try:
            answers = _answers(subject, workers, began + longest_s)
        finally:
            for worker in workers:
                worker.kill()
            end(workers)
    seconds = round(time.monotonic() - began, 2)
    if isinstance(answers, str):
        return Measured(asked=setting, why_none=answers, seconds=seconds)
    return Measured(
        asked=setting,
        observed=tuple(answer.observed for answer in answers),
        said=tuple(answer.said for answer in answers),
        cells=answers[0].cells,
        seconds=seconds,
        why_none=_why_not_applied(setting, answers),
    )


def _answers(subject: Subject, workers: list[Worker], deadline: float) -> list[Timed] | str:
    """One of every rank, or why there is none."""
    store = open_store(subject.size)
    pipes: list[Pipe[Timed | Failed]] = [Pipe(worker.connection, Timed | Failed) for worker in workers]
    waiting = {worker.connection: rank for rank, worker in enumerate(workers)}
    found: dict[int, Timed] = {}
    try:
        for rank, pipe in enumerate(pipes):
            with suppress(PipeClosed):  # it ended: receiving says how
                pipe.send(
                    Job(
                        rank=rank,
                        size=subject.size,
                        port=store.port,
                        device=subject.device,
                        rows=subject.rows,
                        hidden=subject.hidden,
                        dtype=subject.dtype,
                    )
                )
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return f"rank {min(waiting.values())} had not answered in time"
            for connection in ready:
                rank = waiting.pop(connection)
                answer = pipes[rank].receive()
                if isinstance(answer, Failed):
                    return f"rank {rank}: {answer.message}"
                found[rank] = answer
    except PipeClosed as error:
        return f"rank {rank}: its process {workers[rank].how_it_ended() or error}"
    finally:
        for pipe in pipes:
            pipe.close()
    return [found[rank] for rank in range(subject.size)]


def _why_not_applied(setting: Setting, answers: list[Timed]) -> str | None:
    for rank, answer in enumerate(answers):
        for name, value in setting.items():
            if (seen := answer.observed.get(name)) != value:
                return f"{name}={value} was asked for, and rank {rank} sees {seen}"
    return None
