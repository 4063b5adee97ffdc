"""Wall-clock time shared out among things that overlap, so that the shares add up to it.

Kernels are launched overlapped: one starts while those before it still run, and waits for what they write. So an
instant belongs to the kernel that has been running longest, and to nobody while none runs. Functions on the host nest:
there an instant belongs to the innermost, the one that started last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ran:
    """Something that ran: when it began and ended, in one unit for all."""

    name: str
    began: float
    ended: float


def to_the_oldest(rows: Sequence[Ran], began: float) -> Iterator[tuple[float, float]]:
    """(time before it when nothing ran, its own time) of each row; the sum is the last end less `began`.

    Args:
        rows: ordered by their beginnings.
        began: where the time to share out begins; what rows did before it counts for nothing.
    """
    now = began
    for row in rows:
        waited = max(0.0, row.began - now)
        own = max(0.0, row.ended - max(row.began, now))
        now = max(now + waited, row.ended)
        yield waited, own


def to_the_innermost(rows: Sequence[Ran]) -> dict[str, float]:
    """Time by name, of rows that nest or follow each other, in any order: each row's less that of those within it."""
    found: dict[str, float] = {}
    open_rows: list[Ran] = []
    for row in sorted(rows, key=lambda row: (row.began, -row.ended)):
        while open_rows and open_rows[-1].ended <= row.began:
            open_rows.pop()
        length = row.ended - row.began
        found[row.name] = found.get(row.name, 0.0) + length
        if open_rows:
            found[open_rows[-1].name] -= length
        open_rows.append(row)
    return found
