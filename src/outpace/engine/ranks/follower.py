"""A rank that does what the first one says: a process that the first one started, or one of torchrun's.

It loads its share, then runs plan after plan on a runner of its own. The scheduler, control, requests and texts exist
in the first rank alone. It ends with its connection, at any moment, so that it never outlives the first rank; where it
hangs and cannot notice, the kernel ends it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from threading import Thread
from typing import NoReturn

import torch
from torch.distributed.distributed_c10d import Store

from outpace.distributed import nccl
from outpace.distributed.launcher import Launched
from outpace.distributed.pipe import Pipe, PipeClosed
from outpace.distributed.rendezvous import device_of, join, reach_store
from outpace.engine.devices import DTYPES, enter
from outpace.engine.grammars.masks import THE_FIRST_RANKS, Masks
from outpace.engine.memory import free_bytes
from outpace.engine.parts import load_parts
from outpace.engine.ranks import orders
from outpace.engine.ranks.checksum import Checksum
from outpace.engine.ranks.failures import is_fatal
from outpace.engine.ranks.likeness import digests, versions
from outpace.engine.ranks.orders import Order
from outpace.engine.ranks.whereabouts import JOINING, WAITING, Progress
from outpace.engine.runner import Runner
from outpace.engine.warm_up import compile_common
from outpace.errors import OutpaceError
from outpace.models.source import locate
from outpace.models.sums import with_sums
from outpace.speculation.pair import Pair
from outpace.types import Plan

FAILED = 1
LOST = 3
"""Exit status where the first rank is gone without a word: torchrun then starts all ranks again."""
SECONDS_A_BEAT = 1.0


def main(descriptor: int) -> None:
    """Follows over an inherited socket until the first rank hangs up."""
    follow(Pipe(socket.socket(fileno=descriptor), Order))


def follow(pipe: Pipe[Order], here: Launched | None = None, store: Store | None = None) -> NoReturn:
    """Does what comes until the other side hangs up, and then ends the process.

    Args:
        pipe: to the first rank.
        here, store: what torchrun said and where its ranks meet; None where the first rank says so.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the whole group; the first rank decides when this one ends
    faulthandler.register(signal.SIGUSR1)  # shows on stderr where a rank stands that does not get on
    queue: SimpleQueue[Order] = SimpleQueue()
    progress = Progress()
    Thread(target=_read, args=(pipe, queue), name="orders", daemon=True).start()
    try:
        pipe.send(orders.Here(versions=versions()))
        Thread(target=_beat, args=(pipe, progress), name="beat", daemon=True).start()
        runner = _ready(pipe, queue, here, store, progress)
        forwards = _Forwards(runner, pipe, queue, progress)
        with ExitStack() as phases:
            while True:
                progress.begin(WAITING)
                order = queue.get()
                progress.begin(f"at {type(order).__name__}")
                _obey(order, runner, forwards, pipe, phases)
    except BaseException as error:
        with suppress(PipeClosed):  # nobody is left to hear it
            pipe.send(orders.Failed(message=_said(error)))
        os._exit(FAILED)


def _said(error: BaseException) -> str:
    return (str(error) if isinstance(error, OutpaceError) else f"it raised {type(error).__name__}: {error}")[:2000]


def _read(pipe: Pipe[Order], queue: SimpleQueue[Order]) -> None:
    """The end of the connection is noticed in the longest forward, and in a collective that others left."""
    try:
        while not isinstance(order := pipe.receive(), orders.End):
            queue.put(order)
    except PipeClosed:
        os._exit(LOST)
    os._exit(0)


def _beat(pipe: Pipe[Order], progress: Progress) -> None:
    with suppress(PipeClosed):  # the reader ends the process
        while True:
            time.sleep(SECONDS_A_BEAT)
            pipe.send(progress.beat())


def _ready(
    pipe: Pipe[Order], queue: SimpleQueue[Order], here: Launched | None, store: Store | None, progress: Progress
) -> Runner:
    load = queue.get()
    assert isinstance(load, orders.Load)
    progress.begin("opening its device")
    if load.num_threads is not None:
        torch.set_num_threads(load.num_threads)
    local_rank = load.rank if here is None else here.local_rank
    device = enter(device_of(torch.device(load.device), local_rank, local_rank + 1))
    progress.device = str(device)
    pipe.send(orders.Opened())
    progress.begin(JOINING)
    if store is None:
        assert load.port is not None
        store = reach_store(load.port)
    group = with_sums(join(store, load.rank, load.size, device), device, load.sums)
    progress.calls = group.calls
    progress.begin("loading")
    target, drafter = load_parts(
        locate(load.model),
        load.drafter,
        dtype=DTYPES[load.dtype],
        device=device,
        aux_boundaries=load.aux_boundaries,
        group=group,
        weights=load.weights,
        taken=progress.took_a_tensor,
    )
    pipe.send(
        orders.Loaded(
            device=str(device),
            free_bytes=free_bytes(device),
            checkpoints=digests(load.model, load.drafter),
            nccl=nccl.observed(),
        )
    )
    progress.begin(WAITING)
    allocate = queue.get()
    assert isinstance(allocate, orders.Allocate)
    progress.begin("allocating")
    config = allocate.config
    pair = Pair.allocate(
        target.model,
        drafter,
        num_pages=config.num_pages,
        page_size=config.page_size,
        dtype=DTYPES[load.dtype],
        expert_reuse=config.expert_reuse,
    )
    runner = Runner(pair, config)
    pipe.send(orders.Allocated())
    return runner


def _obey(order: Order, runner: Runner, forwards: _Forwards, pipe: Pipe[Order], phases: ExitStack) -> None:
    match order:
        case orders.Cycle(plan=plan, masked=masked) | orders.Prefill(plan=plan, masked=masked):
            forwards.run(plan, THE_FIRST_RANKS if masked else None)
        case orders.CatchUp(plan=plan):
            forwards.run(plan, None)
        case orders.Provide():
            pipe.send(orders.Provided(done=runner.make_extras()))
        case orders.Withdraw():
            runner.withdraw()
        case orders.Occupy(num_rows=num_rows, columns=columns):
            runner.occupy(num_rows, columns)
        case orders.PutBack(num_rows=num_rows, context=context):
            runner.put_back(num_rows, context)
        case orders.Vacate(num_rows=num_rows):
            runner.vacate(num_rows)
        case orders.Compile():
            compile_common(runner, runner.config)
        case orders.Capture(shape=shape) | orders.CapturePrefill(shape=shape):
            runner.capture(shape)
        case orders.TimePhases(on=True):
            phases.enter_context(runner.with_phases())
        case orders.TimePhases(on=False):
            phases.close()
        case _:
            raise AssertionError(f"{type(order).__name__} came to a rank that runs already")


class _Forwards:
    """This rank's forwards, one after another."""

    def __init__(self, runner: Runner, pipe: Pipe[Order], queue: SimpleQueue[Order], progress: Progress) -> None:
        self._runner, self._pipe, self._queue, self._progress = runner, pipe, queue, progress
        self._checksum = Checksum(runner.num_ahead)

    def run(self, plan: Plan, masks: Masks | None) -> None:
        """Runs one. What it raises is over and done with if all ranks raised alike, else the end of this one."""
        self._progress.num_forwards += 1
        num = self._progress.num_forwards
        calls = self._runner.target.group.calls
        try:
            ticket = self._runner.enqueue(plan, masks)
        except Exception as error:
            if is_fatal(error, calls):
                raise
            message = _said(error)
            self._pipe.send(orders.Raised(num_forwards=num, num_collectives=calls.begun, message=message))
            if not isinstance(self._queue.get(), orders.GoOn):
                raise  # the first rank had no error, and is further
            return
        seen = self._checksum.add(ticket)
        if seen is not None:
            self._pipe.send(orders.Checked(num_forwards=seen[0], checksum=seen[1]))
