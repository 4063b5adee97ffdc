"""Compiling all kernels that some work will launch, before it runs, in several processes.

A compilation holds Python's lock for half of its time, so threads would hardly help. What is wanted is found by running
the work with kernels left out, and described as Triton describes a kernel for preloading. Forked processes then put the
binaries into Triton's cache directory; they never touch the GPU.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from outpace.parent import end_with_parent

logger = logging.getLogger(__name__)

MOST_PROCESSES = 24
COMPILED_S = 0.1
"""A kernel that took longer to load was compiled, not found in the cache: processes are worth starting."""
_NUMBER = 4
"""Bytes in which a pipe carries a kernel's place in a list."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as it will be launched."""

    module: str
    name: str
    specialization: str
    """Triton's JSON of types, constants and options."""

    def load(self) -> Any:
        """What `triton.compile` gives, from Triton's cache where it is there.

        None if the kernel does not compile; whoever launches it gets the error.
        """
        try:
            return getattr(sys.modules[self.module], self.name).preload(self.specialization)
        except Exception as error:
            logger.debug("%s could not be compiled ahead: %s", self.name, error)
            return None


def find(run: Callable[[], object]) -> list[Kernel]:
    """The kernels that `run` launches and this process does not hold yet, in order; they are not launched.

    Their outputs are zeros, so `run` must bear wrong values. Nothing else may launch kernels meanwhile.
    """
    found: dict[Kernel, None] = {}

    def leave_out(**asked: Any) -> bool:
        function = asked["fn"]
        found[Kernel(function.module, function.name, asked["compile"]["specialization_data"])] = None
        return True

    with _asked_first(leave_out), _zeroed_memory():
        run()
    return list(found)


def compile_all(kernels: Sequence[Kernel], seconds: float, num_beside: int = 1) -> int:
    """Compiles kernels that Triton's cache does not hold, the first ones first; how many were ready in that time.

    Args:
        kernels: as `find` found them.
        seconds: after which it ends.
        num_beside: processes of this machine that do so at the same time, this one included.
    """
    until = time.perf_counter() + seconds
    waiting, done = _Pipe(), _Pipe()
    processes: list[BaseProcess] = []
    try:
        waiting.put(range(len(kernels)))
        while time.perf_counter() < until and (place := waiting.take()) is not None:
            began = time.perf_counter()
            kernels[place].load()
            done.put([place])
            if not processes and time.perf_counter() - began > COMPILED_S:
                num = min(MOST_PROCESSES, (os.cpu_count() or 1) // num_beside - 1)
                processes = _fork(num, kernels, waiting, done)
        for process in processes:
            process.join(max(0.0, until - time.perf_counter()))
        return done.count()
    finally:
        for process in processes:
            process.kill()
            process.join()
        waiting.close()
        done.close()


def _fork(num: int, kernels: Sequence[Kernel], waiting: _Pipe, done: _Pipe) -> list[BaseProcess]:
    """Starts processes that compile what waits. One that hangs, for a thread that it does not have, is killed later."""
    fork = multiprocessing.get_context("fork")
    arguments = (kernels, waiting, done, driver.active.get_current_target(), os.getpid())
    processes: list[BaseProcess] = [fork.Process(target=_work_off, args=arguments, daemon=True) for _ in range(num)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads
        for process in processes:
            process.start()
    return processes


def _work_off(kernels: Sequence[Kernel], waiting: _Pipe, done: _Pipe, target: GPUTarget, parent: int) -> None:
    end_with_parent(parent)
    launcher = getattr(driver.active, "launcher_cls", None)
    driver.set_active(NoDevice(target))
    while (place := waiting.take()) is not None:
        compiled = kernels[place].load()
        if compiled is not None and launcher is not None:
            with suppress(Exception):  # Triton 3.6 compiles C code for each signature, and caches it; 3.7 does not
                launcher(compiled.src, compiled.metadata)
        done.put([place])


class NoDevice:
    """What Triton asks of a driver in order to compile for a target that need not be there."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Pipe:
    """Numbers that several processes put and take; nobody waits."""

    def __init__(self) -> None:
        self._end, self._begin = os.pipe()
        os.set_blocking(self._end, False)
        os.set_blocking(self._begin, False)

    def put(self, numbers: Sequence[int]) -> None:
        os.write(self._begin, b"".join(number.to_bytes(_NUMBER, "little") for number in numbers))

    def take(self) -> int | None:
        """None where there is none."""
        try:
            return int.from_bytes(os.read(self._end, _NUMBER), "little")
        except BlockingIOError:
            return None

    def count(self) -> int:
        """Takes all."""
        return sum(1 for _ in iter(self.take, None))

    def close(self) -> None:
        os.close(self._begin)
        os.close(self._end)


@contextmanager
def _asked_first(hook: Callable[..., bool]) -> Iterator[None]:
    """Triton asks the hook before it compiles."""
    runtime = triton.knobs.runtime
    before = runtime.jit_cache_hook
    runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        runtime.jit_cache_hook = before


@contextmanager
def _zeroed_memory() -> Iterator[None]:
    """What a kernel that was left out should have written reads as 0: a token, page or position that there is."""
    before = torch.empty, torch.empty_like
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty, torch.empty_like = before
