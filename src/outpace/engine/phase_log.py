"""Where the time of cycles goes while they serve: by k, each phase, and what is left between them.

On a CPU every cycle is taken apart as it runs. On a GPU the graphs that serve carry no marks: how long whole cycles
take is seen there too, and what their phases take is what calibration measured at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.types import CyclePlan, Plan

FOLLOWING = 0.05
"""How far one cycle moves a figure; the first ones move it more, to their mean."""
PHASES = ("draft", "verify", "accept")


@dataclass(slots=True)
class _Mean:
    """A mean that forgets."""

    seconds: float = 0.0
    num_seen: int = 0

    def add(self, seconds: float) -> None:
        self.num_seen += 1
        self.seconds += max(FOLLOWING, 1.0 / self.num_seen) * (seconds - self.seconds)

    @property
    def ms(self) -> float | None:
        """Milliseconds; None before anything was seen."""
        return round(1e3 * self.seconds, 4) if self.num_seen else None


@dataclass(slots=True)
class _Cycles:
    """Cycles of one k, with so many rows."""

    rows: int
    num_seen: int = 0
    whole: _Mean = field(default_factory=_Mean)
    """Where the phases are not timed."""
    phases: dict[str, _Mean] = field(default_factory=dict)
    gap: _Mean = field(default_factory=_Mean)


class PhaseLog:
    """Times by k, of the number of rows that ran last."""

    def __init__(self) -> None:
        self._by_k: dict[int, _Cycles] = {}
        self._last: tuple[int, int] | None = None
        """(k, rows) of the plan before, if it was a cycle."""
        self._last_at = 0.0
        self._last_spent: float | None = None
        """Seconds of its phases, once they are known."""

    def enqueued(self, plan: Plan, at: float) -> None:
        """A forward is handed to the device, at a time in seconds.

        Between two cycles with nothing else between them lies one whole cycle, host included.
        """
        this = (plan.k, len(plan.rows)) if isinstance(plan, CyclePlan) else None
        if this is not None and self._last is not None:
            seconds = at - self._last_at
            if self._last_spent is not None:
                self._of(*self._last).gap.add(max(0.0, seconds - self._last_spent))
            elif this == self._last:  # one more may be in flight: only among equals is it clear whose time that was
                self._of(*this).whole.add(seconds)
        if this is not None:
            self._of(*this).num_seen += 1
        self._last, self._last_at, self._last_spent = this, at, None

    def took(self, plan: CyclePlan, phases: Mapping[str, float]) -> None:
        """What the phases of the cycle enqueued last took, in seconds."""
        cycles = self._of(plan.k, len(plan.rows))
        for phase, seconds in phases.items():
            cycles.phases.setdefault(phase, _Mean()).add(seconds)
        self._last_spent = sum(phases.values())

    def describe(self) -> list[dict[str, Any]]:
        """One entry a k, ascending, for JSON; times in milliseconds, null where nothing was seen.

        `gap_ms` is what the phases leave of the cycle: planning, reading tokens, making text of them.
        """
        return [_described(k, cycles) for k, cycles in sorted(self._by_k.items())]

    def _of(self, k: int, rows: int) -> _Cycles:
        if k not in self._by_k or self._by_k[k].rows != rows:
            self._by_k[k] = _Cycles(rows)
        return self._by_k[k]


def _described(k: int, cycles: _Cycles) -> dict[str, Any]:
    parts = {f"{phase}_ms": cycles.phases.get(phase, _Mean()).ms for phase in PHASES} | {"gap_ms": cycles.gap.ms}
    known = [ms for ms in parts.values() if ms is not None]
    whole = round(sum(known), 4) if len(known) == len(parts) else cycles.whole.ms
    return {"k": k, "rows": cycles.rows, "cycles": cycles.num_seen, "cycle_ms": whole, **parts}
