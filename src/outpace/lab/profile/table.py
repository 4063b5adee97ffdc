"""The table of a profile as rows, for whoever shows it: each has its time, and its limit where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outpace.lab.intervals.sign_test import MIN_ROUNDS
from outpace.lab.intervals.verdict import Over
from outpace.lab.profile.parts import PARTS
from outpace.lab.profile.record import PHASES, Paired, ProfileRecord, Way

FAR = 99
"""How many times its limit a part takes at most for the number to mean anything: beyond, bytes do not bound it."""
FIRST = "ms a cycle"
HOW = {"graph": "as graphs", "eager": "eagerly"}
SHOWN_MS = 5e-4
"""Less is 0.000."""


def rounds_of(record: ProfileRecord) -> Over:
    """What a profile's intervals are taken over."""
    return Over(num=record.num_rounds, least=MIN_ROUNDS, name="rounds", flag="--num-rounds")


def cost(slowdown: Paired) -> str:
    """In percent, with its interval."""
    if slowdown.low is None or slowdown.high is None:
        return f"{slowdown.median:+.1%} in too few rounds for an interval"
    return f"{slowdown.median:+.1%} ({slowdown.low:+.1%} … {slowdown.high:+.1%})"


def own_cost(way: Way) -> str:
    """What measuring a way cost it."""
    if way.timing is None:
        return f"watching it cost {cost(way.slowdown)}"
    return f"timing its phases cost {cost(way.timing)}"


def costs(record: ProfileRecord) -> list[str]:
    """What measuring cost, and whom."""
    served = record.served
    if served.timing is None:
        return [f"watching cost {cost(served.slowdown)}"]
    return [
        f"events that time phases cost a cycle {cost(served.timing)}; the cycle above carries none",
        "tracing cost "
        + " and ".join(f"{way.slowdown.median:+.1%} {HOW[way.how]}" for way in record.ways)
        + ", in cycles behind all rounds",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. Milliseconds a cycle, a value for each way that cycles were run."""

    name: str
    depth: int
    """0 is the cycle, 1 what it adds up from, 2 the parts of a phase."""
    values: tuple[float | None, ...]
    cycle_ms: float
    limit_ms: float | None = None
    count: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Each way's time, share of the cycle, limit, how many times the limit, calls; empty where there is none."""
        return (
            *map(_ms, self.values),
            self._share,
            _ms(self.limit_ms),
            self._over,
            f"{self.count:.0f}" if self.count else "",
        )

    @property
    def _share(self) -> str:
        return "" if self.values[0] is None else f"{self.values[0] / self.cycle_ms:.1%}"

    @property
    def _over(self) -> str:
        ms = self.values[0]
        if ms is None or not self.limit_ms:
            return ""
        return f"{ms / self.limit_ms:.2f}" if ms < FAR * self.limit_ms else f"> {FAR}"


def heading(record: ProfileRecord) -> tuple[str, ...]:
    """Of the rows' cells, the name's column first."""
    return (FIRST, *(HOW[way.how] for way in record.ways), "share", "limit", "× limit", "calls")


def rows(record: ProfileRecord) -> Iterator[Row]:
    """From the cycle down; rows of depth 1 add up to it, and rows of depth 2 to the one of depth 1 before them."""
    ways, cycle_ms = record.ways, record.served.cycle_ms

    def row(name: str, depth: int, values: list[float | None], limit_ms: float | None = None) -> Row:
        return Row(name=name, depth=depth, values=tuple(values), cycle_ms=cycle_ms, limit_ms=limit_ms)

    yield row("cycle", 0, [way.cycle_ms for way in ways])
    for phase in PHASES:
        if any(way.phases_ms.get(phase) for way in ways):
            limit_ms = sum(record.limits_ms.get(phase, {}).values()) or None
            yield row(phase, 1, [way.phases_ms.get(phase) for way in ways], limit_ms)
            yield from _parts(record, phase)
    yield row("gaps between cycles", 1, [way.gaps_ms for way in ways])
    yield row("unexplained", 1, [way.unexplained_ms for way in ways])


def _parts(record: ProfileRecord, phase: str) -> Iterator[Row]:
    """Of a phase that was taken apart."""
    cycle_ms, limits = record.served.cycle_ms, record.limits_ms.get(phase, {})
    counts = {part.name: part.count for part in record.served.parts if part.phase == phase}
    some = False
    for name in PARTS:
        values = tuple(way.part_ms(phase, name) for way in record.ways)
        if any(value is not None for value in values):
            some = True
            yield Row(
                name=name,
                depth=2,
                values=values,
                cycle_ms=cycle_ms,
                limit_ms=limits.get(name),
                count=counts.get(name),
            )
    if some:
        values = tuple(way.in_no_part_ms(phase) for way in record.ways)
        if any(abs(value or 0.0) >= SHOWN_MS for value in values):
            yield Row(name="in no part", depth=2, values=values, cycle_ms=cycle_ms)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
