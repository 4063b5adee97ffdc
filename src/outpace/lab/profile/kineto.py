"""torch's profiler, used sparingly: few cycles, once, and of what it has seen only what is needed.

Every kernel and every call that launches one is an event. The profiler makes an object of each in Python, some tens of
microseconds a piece: a second for the events of a few answers, again and again where every round is traced. So events
are read where they lie, and traces are of a few cycles however long the answers are.
"""

from __future__ import annotations

import warnings

from torch.profiler import ProfilerActivity, profile

from outpace.lab.profile.wall import Ran

NUM_TRACED = 8
"""Cycles of an answer that are traced: each does the same, and what is asked of them is how it is shared out."""


class Trace(profile):
    """torch's own, without its advice to keep the events of several cycles, which comes before there is one."""

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
            super().start()


def tracing(*, host: bool = False, device: bool = True) -> Trace:
    """Traces what runs inside of it.

    Args:
        host: operations of the host.
        device: kernels, copies and fills of a GPU, and what launches them.
    """
    kinds = [*([ProfilerActivity.CPU] if host else []), *([ProfilerActivity.CUDA] if device else [])]
    return Trace(activities=kinds)


def rows_of(trace: Trace, kind: str = "CUDA") -> list[Ran]:
    """What the device did in a trace that is over: kernels, copies, fills; in microseconds.

    Args:
        trace: of `tracing`.
        kind: of the device.
    """
    assert trace.profiler is not None and trace.profiler.kineto_results is not None
    found = trace.profiler.kineto_results
    origin = found.trace_start_ns()
    return [
        Ran(event.name(), 1e-3 * (event.start_ns() - origin), 1e-3 * (event.end_ns() - origin))
        for event in found.events()
        if event.device_type().name == kind
    ]
