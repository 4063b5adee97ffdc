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
UNKNOWN = 0.01
"""Seconds that a cycle is taken for where no two forwards could be timed in a row; what is seen corrects it."""


def make_control(runner: Runner, config: EngineConfig) -> Control:
    """As `config.control` says. Automatic control is calibrated here."""
    if config.control == "fixed" or config.k == 0:
        return FixedControl(config.k)
    ks = sorted({k for k in CHOICES if k < config.k} | {config.k})
    costs = CostTable(runner.buckets, ks)
    measured = sorted({ks[0], ks[1], ks[-1]})
    context = max(0, min(SHORT, (config.max_context or SHORT) - config.k - 1))
    times = {k: time_cycle(runner, 1, k, context) for k in measured}
    for k in ks:
        costs.set(1, k, [(context, times[k] if k in times else _between(k, measured[-2:], times))])
    return AutomaticControl(costs)


def _between(k: int, ends: list[int], times: dict[int, float]) -> float:
    """Drafts come one after another, so their time grows evenly."""
    first, last = ends
    return times[first] + (times[last] - times[first]) * (k - first) / (last - first)


def time_cycle(runner: Runner, num_rows: int, k: int, context: int) -> float:
    """Seconds of a cycle of the first rows, `context` tokens each; nobody may be using them.

    The rows' page tables lead to the trash page, so nothing that is kept is written.
    """
    state = runner.state
    rows = torch.arange(num_rows, device=state.device)
    limit = state.page_table_RP.shape[1] * runner.page_size
    plan = CyclePlan(rows=tuple(range(num_rows)), k=k, kind=SamplingKind.GREEDY, bound=min(context + k + 1, limit))
    times = []
    for _ in range(1 + NUM_TIMED):  # the first warms up
        state.page_table_RP[rows] = 0
        state.length_R[rows] = context
        state.num_pending_R[rows] = 1
        tickets = [runner.enqueue(plan) for _ in range(1 + runner.num_ahead)]  # what is timed has another before it
        for ticket in tickets:
            ticket.read()
        times.append(tickets[-1].seconds())
    state.length_R[rows] = 0
    timed = [seconds for seconds in times[1:] if seconds is not None]
    return median(timed) if timed else UNKNOWN
