"""The result of a profile as one typed value, which `--json` prints and reports are made of; and its arithmetic.

    client tok/s = accept length ÷ cycle          cycle = draft + verify + accept + gaps + what is unexplained

Fields may be added under the same schema number; one that is renamed, removed or changes its meaning raises it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outpace.lab.intervals.interval import Interval

SCHEMA = 2
PHASES = ("draft", "verify", "accept")

ENOUGH = 0.03
"""Of a cycle: when less is unexplained, the phases add up."""

How = Literal["graph", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of one phase of a cycle: its share there in the watched run, of what the phase takes unwatched."""

    phase: str
    name: str
    ms: float
    """Wall-clock time a cycle. Between cycles, of the watched run."""
    count: float
    """Kernels, or calls, a cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one contender over all rounds, measured without any profiler."""

    tok_s: float
    low: float
    high: float
    """The slowest and the fastest round."""
    tokens: int
    cycles: int
    seconds: float

    @property
    def accept_length(self) -> float:
        return self.tokens / self.cycles

    @property
    def cycle_ms(self) -> float:
        return 1e3 * self.seconds / self.cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A ratio taken within rounds, with its 95% interval; None where too few rounds were run."""

    median: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> Interval:
        """The same as the lab's own."""
        bounds = None if self.low is None or self.high is None else (self.low, self.high)
        return Interval(value=self.median, bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Cycles, run in one way: as graphs, or operation by operation. Milliseconds a cycle."""

    how: How
    speed: Speed
    accept_length: float
    cycle_ms: float
    """Of the client: accept length ÷ its tok/s."""
    phases_ms: dict[str, float]
    gaps_ms: float
    """Between cycles."""
    unexplained_ms: float
    unexplained_share: float
    """Of the cycle."""
    parts: tuple[Part, ...]
    slowdown: Paired
    """What watching cost the watched run: 0.01 is 1%. Without an interval where it ran once, behind all rounds."""
    timing: Paired | None = None
    """What the events that time phases cost a cycle that carries them; those whose speed is given do not. None where
    phases are timed without such: in cycles that are no graphs."""

    @property
    def adds_up(self) -> bool:
        """Little is unexplained."""
        return abs(self.unexplained_share) <= ENOUGH

    def part_ms(self, phase: str, name: str) -> float | None:
        """None where the profiled run showed none."""
        return next((part.ms for part in self.parts if (part.phase, part.name) == (phase, name)), None)

    def in_no_part_ms(self, phase: str) -> float | None:
        """What a phase takes beyond its parts; None where it was not taken apart."""
        inside = [part.ms for part in self.parts if part.phase == phase]
        return self.phases_ms[phase] - sum(inside) if inside else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """One model, taken apart."""

    kind: Literal["profile"]
    schema: int
    started_at: str
    """UTC, ISO 8601."""
    model: str
    device: str
    dtype: str
    k: int
    context: float
    """Tokens, on average over the measured cycles."""
    num_rounds: int
    prompts: int
    simulated: bool
    """Acceptance was simulated: the weights are random."""
    ways: tuple[Way, ...]
    """The one that serves first."""
    why_one_way: str | None
    """Why there is no second."""
    launch_ms: dict[str, float] | None
    """By phase, what running operation by operation costs over graphs; None where only one was run."""
    plain: Speed | None
    """Plain decoding in the same rounds; None where that is what was profiled."""
    speedup: Paired | None
    """Over plain decoding."""
    break_even: float | None
    """Accept length: a cycle over a plain step, taken within rounds."""
    acceptance_at: tuple[float, ...]
    """How often the draft at each place stood, given that those before it did."""
    judged_at: tuple[int, ...]
    """How many drafts that is of, at each place."""
    limits_ms: dict[str, dict[str, float]]
    """By phase and part: the least that reading its bytes, or multiplying, takes."""
    why_no_limits: str | None
    rates: dict[str, float]
    seen_by: str
    """How parts were seen."""
    unknown: dict[str, float]
    """Milliseconds a cycle by name of what is in "other"."""
    notes: tuple[str, ...]
    settings: dict[str, Any]
    machine: dict[str, Any]

    @property
    def served(self) -> Way:
        return self.ways[0]


def launch_ms(ways: Sequence[Way]) -> dict[str, float] | None:
    """By phase, what running operation by operation costs over graphs; None where only one was run."""
    if len(ways) < 2:
        return None
    served, eager = ways[0].phases_ms, ways[1].phases_ms
    return {phase: eager[phase] - served[phase] for phase in served}


def way_of(
    how: How,
    speed: Speed,
    phases_ms: Mapping[str, float],
    gaps_ms: float,
    parts: tuple[Part, ...],
    slowdown: Paired,
    timing: Paired | None = None,
) -> Way:
    """Reconciles: what phases and gaps leave of the client's cycle is unexplained, below 0 where they are longer."""
    unexplained = speed.cycle_ms - sum(phases_ms.values()) - gaps_ms
    return Way(
        how=how,
        speed=speed,
        accept_length=speed.accept_length,
        cycle_ms=speed.cycle_ms,
        phases_ms=dict(phases_ms),
        gaps_ms=gaps_ms,
        unexplained_ms=unexplained,
        unexplained_share=unexplained / speed.cycle_ms,
        parts=parts,
        slowdown=slowdown,
        timing=timing,
    )
