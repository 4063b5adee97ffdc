"""What cycles cost on this machine, measured before the first request.

Rows are given a context of empty pages and run as requests would be. Only small batches are timed: larger ones begin
with the nearest one's figures and are corrected as they run.
"""

from __future__ import annotations

from statistics import median

import torch

from outpace.config import EngineConfig
from outpace.engine.runner import Runner
from outpace.speculation.control import AutomaticControl, Control, FixedControl
from outpace.speculation.cost import CostTable
from outpace.types import CyclePlan, SamplingKind

CHOICES = (0, 1, 2, 3, 4, 5, 7, 10, 15)
"""The k's that control chooses from."""
SHORT = 64
NUM_TIMED = 3


def make_control(runner: Runner, config: EngineConfig) -> Control:
    """As `config.control` says. Automatic control is calibrated here."""
    if config.control == "fixed" or config.k == 0:
        return FixedControl(config.k)
    ks = sorted({k for k in CHOICES if k < config.k} | {config.k})
    costs = CostTable(runner.buckets, ks)
    context = min(SHORT, (config.max_context or SHORT) - config.k - 1)
    for k in ks:
        costs.set(1, k, [(context, time_cycle(runner, 1, k, context))])
    return AutomaticControl(costs)


def time_cycle(runner: Runner, num_rows: int, k: int, context: int) -> float:
    """Seconds of a cycle of the first rows, `context` tokens each; nobody may be using them.

    The rows' page tables lead to the trash page, so nothing that is kept is written.
    """
    state = runner.state
    rows = torch.arange(num_rows, device=state.device)
    plan = CyclePlan(rows=tuple(range(num_rows)), k=k, kind=SamplingKind.GREEDY, bound=context + k + 1)
    times = []
    for _ in range(NUM_TIMED + 2):  # the first warms up, and on a GPU the one before a timed one must be in flight
        state.page_table_RP[rows] = 0
        state.length_R[rows] = context
        state.num_pending_R[rows] = 1
        first, second = runner.enqueue(plan), runner.enqueue(plan)
        first.read()
        second.read()
        seconds = second.seconds()
        if seconds is not None:
            times.append(seconds)
    state.length_R[rows] = 0
    return median(times[-NUM_TIMED:])
