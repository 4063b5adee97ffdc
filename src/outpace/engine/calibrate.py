"""What cycles cost on this machine, measured before the first request.

Rows are given a context of empty pages and run as requests would be. On a GPU several batches are timed, each over a
short and a long context, the commonest first and as many as the budget of time allows; on a CPU, where cycles are long
and batches small, one row is. What lies between, the cost table interpolates; what is seen corrects it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from outpace.config import ResolvedConfig
from outpace.engine.runner import Runner
from outpace.models.arch import TargetConfig
from outpace.speculation.apart import ApartControl
from outpace.speculation.control import Control, FixedControl
from outpace.speculation.cost import CostTable
from outpace.speculation.experts import Experts
from outpace.types import CyclePlan, Needs

CHOICES = (0, 1, 2, 3, 4, 5, 7, 10, 15)
"""The k's that control chooses from."""
SHORT, LONG = 64, 4096
"""Tokens a row."""
BATCHES = (1, 8, 4096, 32, 128)
"""Rows, in the order in which they are timed; the engine's most stands for what is more."""
EXPERT_ROWS = 8
"""Rows with which the cost of an expert is measured."""
BUDGET_S = 6.0
"""On a GPU, graphs and compilation included. A batch that was begun is finished."""
NUM_TIMED, NUM_TIMED_CPU = 8, 3
DRIFT = 64
"""Tokens that a row's length may move while it is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is to be timed."""

    buckets: tuple[int, ...]
    """In this order."""
    ks: tuple[int, ...]
    context: int
    """Tokens a row, the short one."""
    long: int | None
    """The long one, where pages and `max_context` have room for it; None times the short one alone."""
    count: int
    """Cycles of each."""
    budget_s: float


def make_control(runner: Runner, config: ResolvedConfig) -> Control:
    """As `config.control` says. Automatic control is calibrated here."""
    if config.control == "fixed" or config.k == 0:
        return FixedControl(config.k)
    costs = CostTable(runner.buckets, drafts_of(config), experts_of(runner.target.config))
    survey = _survey(runner, costs)
    calibration = calibrate(runner, costs, survey)
    if runner.frames is not None:  # elsewhere the cycles that serve are taken apart themselves
        calibration["phases"] = [_phases(runner, k, survey) for k in survey.ks]
    return ApartControl(costs, calibration)


def experts_of(config: TargetConfig) -> Experts | None:
    """A mixture's; None for other targets."""
    mixture = config.mixture
    if mixture is None or not any(mixture.layers):
        return None
    return Experts(sum(mixture.layers), mixture.num_experts, mixture.num_chosen)


def drafts_of(config: ResolvedConfig) -> list[int]:
    """The k's that cycles may have, ascending: those that control chooses from, and 0 for requests that want it."""
    between = CHOICES if config.control == "auto" else (0,)
    return sorted({k for k in between if k < config.k} | {config.k})


def _survey(runner: Runner, costs: CostTable) -> Survey:
    ks, on_gpu = costs.ks, runner.frames is not None
    measured = {ks[0], ks[1], ks[-1], *([ks[len(ks) // 2]] if on_gpu else [])}
    return Survey(
        buckets=tuple(dict.fromkeys(map(costs.bucket, BATCHES if on_gpu else BATCHES[:1]))),
        ks=tuple(sorted(measured)),
        context=max(0, min(SHORT, _limit(runner) - ks[-1] - 1)),
        long=LONG if on_gpu else None,
        count=NUM_TIMED if on_gpu else NUM_TIMED_CPU,
        budget_s=BUDGET_S,
    )


def calibrate(runner: Runner, costs: CostTable, survey: Survey) -> dict[str, Any]:
    """Fills the table as the survey says; what was measured and how long that took, as plain data for JSON."""
    began = time.perf_counter()
    measured: list[dict[str, Any]] = []
    left_out: list[int] = []
    for bucket in survey.buckets:
        if measured and time.perf_counter() - began > survey.budget_s:
            left_out.append(bucket)
            continue
        for k in survey.ks:
            touched: list[int] = []
            more: dict[str, Any] = {} if costs.experts is None else {"touched": touched}
            points = [
                (bucket * context, median(time_cycles(runner, bucket, k, context, survey.count, **more)))
                for context in _contexts(runner, survey, bucket)
            ]
            costs.set(bucket, k, points, median(touched) if touched else None)
            measured += [
                {"rows": bucket, "k": k, "context": total // bucket, "ms": round(1e3 * seconds, 4)}
                for total, seconds in points
            ]
    if costs.experts is not None:
        costs.experts.seconds_each = _seconds_an_expert(runner, costs.bucket(EXPERT_ROWS), survey)
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "cycles_each": survey.count,
        "measured": measured,
        "rows_left_out": left_out,
    }


def _seconds_an_expert(runner: Runner, num_rows: int, survey: Survey) -> float:
    """What one more expert of one layer takes: a plain step of random tokens, and one of as many tokens all alike.

    0 where the two touch as many, as with one row; the cost table then goes by what cycles take alone.
    """
    apart: list[int] = []
    alike: list[int] = []
    seconds_apart = median(time_cycles(runner, num_rows, 0, survey.context, survey.count, touched=apart))
    seconds_alike = median(time_cycles(runner, num_rows, 0, survey.context, survey.count, touched=alike, alike=True))
    more = median(apart) - median(alike)
    return max(0.0, seconds_apart - seconds_alike) / more if more > 0 else 0.0


def _contexts(runner: Runner, survey: Survey, bucket: int) -> list[int]:
    """The short context, and the long one cut to what there is room for; one alone if they would be too close."""
    if survey.long is None:
        return [survey.context]
    room = (
        min(_limit(runner), _num_pages(runner) // bucket * runner.page_size)
        - DRIFT
        - runner.num_ahead
        - survey.ks[-1]
        - 1
    )
    long = min(survey.long, room)
    return [survey.context, long] if long >= 2 * max(1, survey.context) else [survey.context]


def time_cycles(
    runner: Runner,
    num_rows: int,
    k: int,
    context: int,
    count: int,
    *,
    touched: list[int] | None = None,
    alike: bool = False,
) -> list[float]:
    """Seconds of each of `count` cycles one after another, enqueued ahead as in serving; one more warms up.

    Where the device stood idle before a cycle, the host's clock counts.

    Args:
        runner: nobody may be using its first rows, and no prefix may be kept: pages 1, 2, … are written to.
        num_rows: rows of the batch.
        k: drafts; none is accepted, which makes no cycle cheaper.
        context: tokens of each row, on pages of its own as long as there are enough: one page read over and over would
            come from a cache, and hide what context costs. Every cycle adds one; after some they start anew.
        count: cycles.
        touched: takes the experts that each cycle touched, over all layers of a mixture.
        alike: all rows of the batch are the first one, so that their tokens go through the same experts.
    """
    most = max(1, min(DRIFT, _limit(runner) - context - runner.num_ahead - k - 1))
    times: list[float] = []
    with _occupied(runner, num_rows, k, context, most) as plan:
        plan = replace(plan, rows=(0,) * num_rows) if alike else plan
        while len(times) < count:
            runner.put_back(num_rows, context)
            times += _one_after_another(runner, plan, min(most, count - len(times)), touched)
    return times


def time_phases(runner: Runner, num_rows: int, k: int, context: int, count: int) -> list[dict[str, float]]:
    """Seconds of each of `count` cycles by phase, one at a time; else as `time_cycles`."""
    with _occupied(runner, num_rows, k, context, 0) as plan, runner.with_phases():
        return [_one_marked(runner, plan, context, 0)[0] for _ in range(1 + count)][1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Cycles that carry the marks of their phases, in seconds."""

    cycles: list[float]
    """As `time_cycles` gives them; beside those it says what marks cost."""
    phases: list[dict[str, float]]
    gaps: list[float]
    """What a cycle takes besides its phases, from the end of the one before: copies, and waiting. Those before which
    the device may have stood idle are left out."""


def time_marked(runner: Runner, num_rows: int, k: int, context: int, count: int) -> Marked:
    """Cycles one after another as in `time_cycles`, and as many whose phases are read: each is enqueued while another
    one runs, as in serving, and nothing behind it, which would record its marks anew.

    The first of them capture a graph, and do not count: an H200 that waited for that is quicker for a while."""
    with runner.with_phases():
        time_cycles(runner, num_rows, k, context, count)
        cycles = time_cycles(runner, num_rows, k, context, count)
        with _occupied(runner, num_rows, k, context, 0) as plan:
            found = [_one_marked(runner, plan, context, runner.num_ahead) for _ in range(count)]
    gaps = [seconds - sum(phases.values()) for phases, seconds in found if seconds is not None]
    return Marked(cycles=cycles, phases=[phases for phases, _ in found], gaps=gaps)


def _one_marked(
    runner: Runner, plan: CyclePlan, context: int, num_before: int
) -> tuple[dict[str, float], float | None]:
    """Seconds by phase, and from the end of the forward before, of a cycle behind so many others."""
    runner.put_back(len(plan.rows), context)
    tickets = [runner.enqueue(plan) for _ in range(1 + num_before)]
    for ticket in tickets:
        ticket.read()
    phases = tickets[-1].phases()
    assert phases is not None
    return phases, tickets[-1].seconds()


def _phases(runner: Runner, k: int, survey: Survey) -> dict[str, Any]:
    """What the phases of one row's cycle take, behind the short context."""
    times = time_phases(runner, 1, k, survey.context, survey.count)
    medians = {f"{phase}_ms": round(1e3 * median(time[phase] for time in times), 4) for phase in times[0]}
    return {"rows": 1, "k": k, "context": survey.context, **medians}


def _one_after_another(runner: Runner, plan: CyclePlan, count: int, touched: list[int] | None) -> list[float]:
    """Seconds of `count` cycles behind one that is not counted: nothing runs before it."""
    in_flight = deque(runner.enqueue(plan) for _ in range(runner.num_ahead))
    times = []
    since = time.perf_counter()
    for _ in range(1 + count):
        in_flight.append(runner.enqueue(plan))
        ticket = in_flight.popleft()
        outcome = ticket.read()
        if touched is not None and outcome.touched is not None:
            touched.append(outcome.touched)
        seconds, now = ticket.seconds(), time.perf_counter()
        times.append(now - since if seconds is None else seconds)
        since = now
    for ticket in in_flight:
        ticket.read()
    return times[1:]


@contextmanager
def _occupied(runner: Runner, num_rows: int, k: int, context: int, drift: int) -> Iterator[CyclePlan]:
    """A plan of the first rows, which get pages for it and are empty again at the end."""
    bound = min(context + drift + runner.num_ahead + k + 1, _limit(runner))
    runner.occupy(num_rows, -(-bound // runner.page_size))
    try:
        yield CyclePlan(rows=tuple(range(num_rows)), k=k, needs=Needs(), bound=bound)
    finally:
        runner.vacate(num_rows)


def _limit(runner: Runner) -> int:
    """Tokens that a row's page table reaches."""
    return runner.state.page_table_RP.shape[1] * runner.page_size


def _num_pages(runner: Runner) -> int:
    """Pages but the trash page."""
    return len(runner.state.boundary_PH) - 1
