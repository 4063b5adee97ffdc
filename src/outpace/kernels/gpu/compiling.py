"""Compiling many kernels at a time: most of a compilation is done outside of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import triton

NUM_THREADS = 8


def run_together(tasks: Sequence[Callable[[], bool]], device: torch.device) -> list[bool]:
    """What tasks return that launch kernels; they run at a time, and a kernel that several launch is compiled once.

    Raises:
        triton.compiler.errors.CompilationError: a kernel does not compile.
    """
    with ThreadPoolExecutor(NUM_THREADS) as compilers, ThreadPoolExecutor(NUM_THREADS) as launchers:
        compilation = triton.AsyncCompileMode(compilers)

        def run(task: Callable[[], bool]) -> bool:
            torch.cuda.set_device(device)
            with compilation:
                return task()

        return list(launchers.map(run, tasks))
