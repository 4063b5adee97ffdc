"""The sweep: each value alone, the best of each axis together, and then the best set against the default, to be sure.

A set's score is the mean over the collectives that serving uses of log(its time ÷ the default's). The last stage takes
the two in turns, in fresh processes each time; the best set counts only if the interval of their ratio ends below 1:
that of signed ranks, the narrowest, since each round takes seconds of starting processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from statistics import fmean, median
from typing import Any

from outpace.errors import EngineError
from outpace.lab.intervals.interval import CONFIDENCE
from outpace.lab.intervals.signed_ranks import Location, locate
from outpace.lab.nccl_sweep.measure import Measured
from outpace.lab.nccl_sweep.orders import Cell
from outpace.lab.nccl_sweep.settings import Setting, spelled
from outpace.lab.timing.samples import mirrored
from outpace.models.parallel import MAX_GATHERED

ROUNDS = 6
"""Of the last stage: the fewest that give an interval."""
PATIENCE, SHORTEST_S = 3.0, 20.0
"""A setting under which ranks hang is given up after so many times what others took, and so many seconds at least."""
WORTH = 0.01
"""Of the time: what gains less is left out of a set."""

Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a sweep."""

    measured: tuple[Measured, ...]
    """In the order of measuring; the first is the default."""
    best: Setting
    """That is surely faster than the default; empty if none is."""
    candidate: Setting
    """What was tried against the default last."""
    ratio: Location | None
    """Log of candidate ÷ default over the last stage's rounds; None if it did not come to that."""
    left_out: tuple[str, ...] = field(default=())
    """What the time did not suffice for."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        at = self.ratio
        low, high = (exp(at.low), exp(at.high)) if at is not None and isfinite(at.low) else (None, None)
        ratio = None if at is None else {"center": exp(at.center), "low": low, "high": high}
        rounds = 0 if at is None else at.num
        return {
            "best": dict(self.best),
            "candidate": dict(self.candidate),
            "candidate_over_default": ratio,
            "rounds": rounds,
            "left_out": list(self.left_out),
            "measured": [measured.as_dict() for measured in self.measured],
        }


def used(cells: Sequence[Cell]) -> dict[Key, float]:
    """Times of the collectives that serving uses: few rows are gathered within a graph, many summed by eager prefill.

    Without graphs, as on a CPU, eager ones stand for them.
    """
    modes = {cell.mode for cell in cells}
    found: dict[Key, float] = {}
    for cell in cells:
        few = cell.rows <= MAX_GATHERED
        operation, mode = ("gather", "graph") if few else ("all_reduce", "eager")
        if cell.operation == operation and cell.mode == (mode if mode in modes else "eager"):
            found[cell.operation, cell.rows, cell.mode] = cell.us
    return found


def log_ratio(cells: Sequence[Cell], default: Sequence[Cell]) -> float:
    """Mean over the cells that serving uses; below 0 is faster."""
    ours, theirs = used(cells), used(default)
    return fmean(log(ours[key] / theirs[key]) for key in theirs)


class Sweep:
    """One sweep. `run` does it.

    Args:
        measure: one setting in fresh processes, given the seconds that it may take.
        axes: what is tried, by name.
        limit_s: seconds for all of it.
        say: told of every step.
        clock: seconds.
    """

    def __init__(
        self,
        measure: Callable[[Setting, float], Measured],
        axes: Mapping[str, Sequence[Setting]],
        limit_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._axes, self._limit_s, self._say, self._clock = measure, axes, limit_s, say, clock
        self._began = clock()
        self._measured: list[Measured] = []
        self._left_out: list[str] = []
        self._took: list[float] = []
        self._each_s = 0.0
        """What one measurement takes, of those that came to an end."""

    def run(self) -> Verdict:
        """Measures as long as there is time.

        Raises:
            EngineError: the default itself could not be measured.
        """
        default = self._one({})
        if default.why_none is not None:
            raise EngineError(f"NCCL could not be measured without any setting: {default.why_none}")
        candidate = self._together(default, self._alone(default))
        ratio = self._against_default(candidate) if candidate else None
        sure = ratio is not None and ratio.high < 0.0
        return Verdict(
            measured=tuple(self._measured),
            best=candidate if sure else {},
            candidate=candidate,
            ratio=ratio,
            left_out=tuple(self._left_out),
        )

    def _one(self, setting: Setting, default: Measured | None = None) -> Measured:
        began = self._clock()
        longest = max(SHORTEST_S, PATIENCE * self._each_s) if self._each_s else math.inf
        measured = self._measure(setting, max(1.0, min(longest, self._limit_s - (began - self._began))))
        self._measured.append(measured)
        what = measured.why_none
        if what is None:
            self._took.append(self._clock() - began)
            self._each_s = median(self._took)
            ratio = 0.0 if default is None else log_ratio(measured.cells, default.cells)
            what = "measured" if default is None else f"{exp(ratio):.3f} of the default"
        self._say(f"[{self._clock() - self._began:4.0f} of {self._limit_s:.0f} s] {spelled(setting)}: {what}")
        return measured

    def _has_time(self, num: int, what: str) -> bool:
        """For so many measurements, and for the last stage behind them."""
        needed = (num + 2 * ROUNDS) * self._each_s
        if self._clock() - self._began + needed <= self._limit_s:
            return True
        self._left_out.append(what)
        return False

    def _alone(self, default: Measured) -> list[tuple[float, Setting]]:
        """The best value of each axis that gains something, by its score, the best first."""
        found: list[tuple[float, Setting]] = []
        for name, settings in self._axes.items():
            scores: list[tuple[float, Setting]] = []
            for setting in settings:
                if not self._has_time(1, f"{name}: {spelled(setting)}"):
                    continue
                measured = self._one(setting, default)
                if measured.why_none is None:
                    scores.append((log_ratio(measured.cells, default.cells), setting))
            if scores:
                found.append(min(scores, key=lambda scored: scored[0]))
        return sorted((scored for scored in found if scored[0] < -WORTH), key=lambda scored: scored[0])

    def _together(self, default: Measured, ordered: Sequence[tuple[float, Setting]]) -> Setting:
        """Adds one axis after another to the best one, as long as it helps."""
        if not ordered:
            return {}
        (best, together), *others = ordered
        for _, setting in others:
            wider = {**together, **setting}
            if not self._has_time(1, spelled(wider)):
                continue
            measured = self._one(wider, default)
            if measured.why_none is None and (score := log_ratio(measured.cells, default.cells)) < best - WORTH:
                best, together = score, wider
        return together

    def _against_default(self, candidate: Setting) -> Location | None:
        """None if time did not suffice."""
        if self._clock() - self._began + 2 * ROUNDS * self._each_s > self._limit_s:
            self._left_out.append(f"{spelled(candidate)} against the default, {ROUNDS} rounds")
            return None
        sides: tuple[list[Measured], list[Measured]] = ([], [])
        for index in mirrored(2, ROUNDS):
            sides[index].append(self._one((candidate, {})[index]))
        pairs = [(ours, theirs) for ours, theirs in zip(*sides, strict=True) if not (ours.why_none or theirs.why_none)]
        if not pairs:
            return None
        return locate([log_ratio(ours.cells, theirs.cells) for ours, theirs in pairs], CONFIDENCE)
