"""A profiler's trace of a GPU, taken apart: cycles, their phases, and the parts of each, which add up to the time.

All of it follows from the order of the kernels. A cycle ends with `_settle` and the copy of its outcome behind it.
Every forward begins with `_places`: k of the drafter, then the target's. The first kernel that samples after a forward
ends it. The head is the first product after the second norm behind a forward's last attention; products and norms of
the target after that fuse features for the drafter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outpace.errors import EngineError
from outpace.lab.profile.parts import (
    ATTENDS,
    COPIES,
    FIRST_OF_FORWARD,
    FUSION,
    GAPS,
    HEAD,
    LAST_OF_CYCLE,
    LINEAR,
    NORMS,
    OTHER,
    SAMPLING,
    part_of,
)
from outpace.lab.profile.wall import Ran, to_the_oldest
from outpace.wording import count_of

BETWEEN = "gaps"
"""The phase that is none: from a cycle's last kernel to the next one's first, copies included."""
Key = tuple[str, str]
"""Phase, part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Means over whole cycles, in the unit of the rows."""

    num_cycles: int
    num_left_out: int
    """Of another shape: not with k drafts."""
    time: dict[Key, float]
    count: dict[Key, float]
    """Kernels a cycle."""
    unknown: dict[str, float]
    """Time by name of what is "other"."""


def take_apart(rows: Sequence[Ran], k: int) -> Traced:
    """Everything about cycles of k drafts.

    Raises:
        EngineError: no whole cycle of k drafts is in it.
    """
    cycles = whole_cycles(rows)
    time: dict[Key, float] = defaultdict(float)
    count: dict[Key, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    num = 0
    for began, cycle in cycles:
        if (keys := keys_of(cycle, k)) is None:
            continue
        num += 1
        inside = False
        for key, row, (waited, own) in zip(keys, cycle, to_the_oldest(cycle, began), strict=True):
            time[key] += own
            count[key] += 1
            time[key[0] if inside else BETWEEN, GAPS] += waited
            inside = inside or key[0] != BETWEEN
            if key[1] == OTHER:
                unknown[row.name] += own
    if not num:
        raise EngineError(
            f"a trace of {count_of(len(rows), 'kernel')} shows no whole cycle of {count_of(k, 'draft')}: the "
            "profiler did not see the device, or the answer was too short"
        )
    return Traced(
        num_cycles=num,
        num_left_out=len(cycles) - num,
        time={key: value / num for key, value in time.items()},
        count={key: value / num for key, value in count.items()},
        unknown={name: unknown[name] / num for name in sorted(unknown, key=lambda name: -unknown[name])},
    )


def whole_cycles(rows: Sequence[Ran]) -> list[tuple[float, list[Ran]]]:
    """(end of the cycle before, the cycle's rows by their beginnings), of all cycles that another one came before."""
    ordered = sorted(rows, key=lambda row: (row.began, row.ended))
    ends = [_end(ordered, place) for place, row in enumerate(ordered) if row.name == LAST_OF_CYCLE]
    cycles = []
    for last, this in pairwise(ends):
        began = max(row.ended for row in ordered[max(0, last - 64) : last])
        cycles.append((began, [row for row in ordered[last:this] if row.ended > began]))
    return cycles


def _end(ordered: Sequence[Ran], settled: int) -> int:
    """Where a cycle ends: behind the copy of its outcome, or behind `_settle` where none comes before the next
    forward."""
    for place in range(settled + 1, len(ordered)):
        if ordered[place].name.startswith("Memcpy DtoH"):
            return place + 1
        if ordered[place].name == FIRST_OF_FORWARD:
            break
    return settled + 1


def keys_of(cycle: Sequence[Ran], k: int) -> list[Key] | None:
    """Phase and part of each row; None where it is no cycle of k drafts."""
    forwards = [place for place, row in enumerate(cycle) if row.name == FIRST_OF_FORWARD]
    if len(forwards) != k + 1:
        return None
    parts = [part_of(row.name) for row in cycle]
    sampled = [place for place, part in enumerate(parts) if part == SAMPLING]
    verify = max((place + 1 for place in sampled if place < forwards[-1]), default=0)
    accept = next((place for place in sampled if place > forwards[-1]), len(parts))
    bounds = [*forwards, accept]
    for begin, end in pairwise(bounds):
        _find_head(cycle, parts, begin, end, fuses=begin == forwards[-1])
    first = next(place for place, part in enumerate(parts) if part != COPIES)
    last = max(place for place, part in enumerate(parts) if part != COPIES)
    keys = []
    for place, part in enumerate(parts):
        phase = "draft" if place < verify else "verify" if place < accept else "accept"
        keys.append((BETWEEN if place < first or place > last else phase, part))
    return keys


def _find_head(cycle: Sequence[Ran], parts: list[str], begin: int, end: int, *, fuses: bool) -> None:
    """Renames the head's product among the parts of one forward, and what fuses features behind it."""
    attends = [place for place in range(begin, end) if cycle[place].name in ATTENDS]
    norms = [place for place in range(attends[-1], end) if parts[place] == NORMS] if attends else []
    if len(norms) < 2:
        return
    head = next((place for place in range(norms[1], end) if parts[place] == LINEAR), None)
    if head is None:
        return
    parts[head] = HEAD
    for place in range(head + 1, end if fuses else head + 1):
        if parts[place] in (LINEAR, NORMS):
            parts[place] = FUSION
