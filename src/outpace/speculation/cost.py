"""What cycles cost: seconds by number of rows, k and context, measured at start and corrected by what is seen.

A cycle's time is taken as base + slope · context tokens of all its rows, for each (bucket, k): weights are read once
whatever the context, keys and values once a token. What is observed later scales an entry as a whole.

Legend: a bucket is a number of rows that a forward is padded to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FOLLOWING = 0.05
"""How far an observation moves an entry; the first ones move it more, to their mean."""
OUTLIER = 4.0
"""An observation this many times off is a disturbance (a compilation, a paused machine), and moves nothing."""
CERTAIN = 3
"""So many of them in a row are the truth."""


@dataclass(slots=True)
class _Entry:
    base: float
    slope: float
    scale: float = 1.0
    num_seen: int = 0
    num_outliers: int = 0
    """In a row."""
    borrowed: bool = False
    """Taken from a neighbour, and not seen yet."""


class CostTable:
    """Seconds of a whole cycle, host included; k = 0 is a plain step.

    Args:
        buckets: ascending.
        ks: ascending, 0 first.
    """

    def __init__(self, buckets: Sequence[int], ks: Sequence[int]) -> None:
        assert ks[0] == 0
        self.buckets, self.ks = tuple(buckets), tuple(ks)
        self._entries: dict[tuple[int, int], _Entry] = {}

    def set(self, bucket: int, k: int, points: Sequence[tuple[int, float]]) -> None:
        """What was measured.

        Args:
            bucket: of `buckets`.
            k: of `ks`.
            points: (context tokens of all rows together, seconds), one or two of them, contexts ascending.
        """
        first, last = points[0], points[-1]
        slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0])) if last[0] > first[0] else 0.0
        self._entries[bucket, k] = _Entry(max(1e-9, first[1] - slope * first[0]), slope)

    def bucket(self, num_rows: int) -> int:
        """The bucket that holds so many rows."""
        return self.buckets[min(bisect_left(self.buckets, num_rows), len(self.buckets) - 1)]

    def seconds(self, num_rows: int, k: int, context: int) -> float:
        """Expected time of a cycle; with drafts never less than of a plain step.

        Args:
            num_rows: of the batch.
            k: of `ks`.
            context: tokens of all rows together.
        """
        entry = self._entry(num_rows, k)
        expected = entry.scale * (entry.base + entry.slope * context)
        return max(expected, self.seconds(num_rows, 0, context)) if k else expected

    def observe(self, num_rows: int, k: int, context: int, seconds: float) -> bool:
        """Corrects an entry by a cycle that ran; says whether it was left out as a disturbance."""
        entry = self._entry(num_rows, k)
        ratio = seconds / (entry.scale * (entry.base + entry.slope * context))
        if entry.borrowed:
            self._settle(self.bucket(num_rows), k, ratio)
            return False
        if 1.0 / OUTLIER < ratio < OUTLIER:
            entry.num_outliers = 0
            entry.num_seen += 1
            entry.scale *= 1.0 + max(FOLLOWING, 1.0 / (entry.num_seen + 1)) * (ratio - 1.0)
            return False
        entry.num_outliers += 1
        if entry.num_outliers >= CERTAIN:
            entry.scale, entry.num_outliers, entry.num_seen = entry.scale * ratio, 0, 0
        return True

    def _settle(self, bucket: int, k: int, ratio: float) -> None:
        """A borrowed entry takes its first observation whole; those of its bucket that are still borrowed go along."""
        for (other, other_k), entry in self._entries.items():
            if other == bucket and entry.borrowed:
                entry.scale *= ratio
                entry.borrowed = other_k != k

    def _entry(self, num_rows: int, k: int) -> _Entry:
        """A bucket that was not measured begins with the figures of the nearest one below that was."""
        bucket = self.bucket(num_rows)
        if (bucket, k) not in self._entries:
            self._borrow(bucket)
        return self._entries[bucket, k]

    def _borrow(self, bucket: int) -> None:
        """All missing entries of a bucket, from the nearest one below, or above, that has them."""
        for k in self.ks:
            known = sorted(b for b, of in self._entries if of == k)
            if (bucket, k) not in self._entries and known:
                nearest = max((b for b in known if b <= bucket), default=known[0])
                entry = self._entries[nearest, k]
                self._entries[bucket, k] = _Entry(entry.base, entry.slope, entry.scale, borrowed=True)

    def as_dict(self) -> list[dict[str, Any]]:
        """One row an entry, for JSON; times in milliseconds."""
        return [
            {
                "bucket": bucket,
                "k": k,
                "base_ms": round(1e3 * entry.base * entry.scale, 4),
                "us_per_1k_context": round(1e9 * entry.slope * entry.scale, 4),
                "observed_over_measured": round(entry.scale, 4),
            }
            for (bucket, k), entry in sorted(self._entries.items())
        ]
