"""What cycles cost: seconds by number of rows, k and context, measured at start and corrected by what is seen.

A cycle's time is taken as base + slope · context tokens of all its rows, for each (bucket, k): weights are read once
whatever the context, keys and values once a token. What is observed later scales an entry as a whole. Between measured
k's and between measured buckets an entry is interpolated, outside them borrowed from the nearest, until it is seen.
Of a mixture an entry also knows how many experts it was measured with, and moves with those that are expected.

Legend: a bucket is a number of rows that a forward is padded to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from statistics import linear_regression, median
from typing import Any, Literal

from outpace.speculation.experts import Experts

FOLLOWING = 0.05
"""How far an observation moves an entry; the first ones move it more, to their mean."""
OFF = 1.25
"""An observation this many times off, to either side, is more than noise if others follow."""
NOISY = 2.0
"""Where observations vary much anyway, one is off from so many times their usual deviation on."""
SHIFTED = 4
"""So many of them in a row say that the machine has changed: an entry takes their median, and its past is forgotten."""
OUTLIER = 4.0
"""An observation this many times off is a disturbance (a compilation, a paused machine), and moves nothing."""
LEAST_LEFT = 0.2
"""Of a base, whatever fewer experts are expected to save."""
CERTAIN = 3
"""So many outliers in a row are the truth."""
STALE = 600
"""Cycles of a bucket after which what was seen of another k is old: the machine may have been busy then."""

Observed = Literal["usual", "off", "shifted", "disturbed"]
"""What an observation was: near what was expected; far from it, cause unknown; the last of several such, which are now
believed; or so far that it is nobody's."""


@dataclass(slots=True)
class _Entry:
    base: float
    slope: float
    source: Literal["measured", "seen", "interpolated", "borrowed"]
    scale: float = 1.0
    known: float = 1.0
    """The scale before the first few observations, which move it far."""
    num_seen: int = 0
    off: list[float] = field(default_factory=list)
    """Scales that the last observations asked for, while all were off to the same side."""
    spread: float = 0.0
    """How far observations are off usually, as a logarithm."""
    num_unseen: int = 0
    """Cycles of its bucket since it was seen."""
    loose: bool = False
    """Taken from other buckets, and not seen yet."""
    experts: float | None = None
    """That its cycles touched when it was measured; None if that is not known."""

    def seconds(self, context: int, moved: float = 0.0) -> float:
        """`moved`: seconds that other experts take than those it was measured with."""
        return self.scale * (max(self.base + moved, LEAST_LEFT * self.base) + self.slope * context)

    def follow(self, ratio: float) -> Observed:
        """Takes an observation that is so many times what was expected."""
        known = self.scale if self.num_seen >= SHIFTED else self.known
        far = abs(log(self.scale * ratio / known))
        is_off = far > max(log(OFF), NOISY * self.spread)
        if not is_off or (self.off and (self.off[-1] > known) != (self.scale * ratio > known)):
            self.off.clear()
        if is_off:
            self.off.append(self.scale * ratio)
        self.spread += FOLLOWING * (min(far, log(OUTLIER)) - self.spread)
        is_outlier = not 1.0 / OUTLIER < ratio < OUTLIER
        if len(self.off) >= (CERTAIN if is_outlier else SHIFTED):
            self.scale, self.num_seen = median(self.off), 0
            self.known = self.scale
            self.off.clear()
            return "shifted"
        if is_outlier:
            return "disturbed"
        self.num_seen += 1
        self.scale *= 1.0 + max(FOLLOWING, 1.0 / (self.num_seen + 1)) * (ratio - 1.0)
        return "off" if self.off else "usual"


class CostTable:
    """Seconds of a whole cycle, host included; k = 0 is a plain step.

    Args:
        buckets: ascending.
        ks: ascending, 0 first.
        experts: of a mixture.
    """

    def __init__(self, buckets: Sequence[int], ks: Sequence[int], experts: Experts | None = None) -> None:
        assert ks[0] == 0
        self.experts = experts
        self.buckets, self.ks = tuple(buckets), tuple(ks)
        self._rows: dict[int, dict[int, _Entry]] = {}
        """By bucket, then k."""

    def set(self, bucket: int, k: int, points: Sequence[tuple[int, float]], experts: float | None = None) -> None:
        """What was measured; a line through it, which context never makes cheaper.

        Args:
            bucket: of `buckets`.
            k: of `ks`.
            points: (context tokens of all rows together, seconds), one or more.
            experts: that these cycles touched, over all layers.
        """
        contexts, times = zip(*points, strict=True)
        slope = max(0.0, linear_regression(contexts, times).slope) if len(set(contexts)) > 1 else 0.0
        base = (sum(times) - slope * sum(contexts)) / len(points)
        row = self._rows.setdefault(bucket, {})
        row[k] = _Entry(max(1e-9, base), slope, "measured", experts=experts)
        self._interpolate_ks(row)

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
        row = self._row(num_rows)
        return max(self._seconds(row, num_rows, 0, context), self._seconds(row, num_rows, k, context))

    def contradicts(self, num_rows: int, k: int, context: int) -> bool:
        """Whether a cycle with drafts, as seen, takes clearly less than the plain step that is part of it, as known."""
        row = self._row(num_rows)
        return OFF * self._seconds(row, num_rows, k, context) < self._seconds(row, num_rows, 0, context)

    def by_k(self, num_rows: int, context: int) -> dict[int, float]:
        """`seconds` of every k."""
        row = self._row(num_rows)
        plain = self._seconds(row, num_rows, 0, context)
        return {k: max(plain, self._seconds(row, num_rows, k, context)) for k in row}

    def _seconds(self, row: dict[int, _Entry], num_rows: int, k: int, context: int) -> float:
        touched = None if self.experts is None else self.experts.expected(num_rows * (k + 1))
        return row[k].seconds(context, self._moved(row[k], touched))

    def _moved(self, entry: _Entry, touched: float | None) -> float:
        """Seconds that so many experts take more than those that an entry was measured with."""
        if self.experts is None or touched is None or entry.experts is None:
            return 0.0
        return self.experts.seconds_each * (touched - entry.experts)

    def observe(self, num_rows: int, k: int, context: int, seconds: float, touched: int | None = None) -> Observed:
        """Corrects an entry by a cycle that ran.

        Args:
            num_rows, k, context: as `seconds`'.
            seconds: what it took.
            touched: experts, over all layers. What they explain of its time corrects nothing.
        """
        row = self._row(num_rows)
        entry = row[k]
        if self.experts is not None and touched is not None:
            self.experts.learn(num_rows * (k + 1), touched)
        moved = self._moved(entry, touched)
        ratio = seconds / entry.seconds(context, moved)
        if entry.loose:
            self._tighten(row, k, ratio, seconds - entry.slope * context - moved)
            return "usual"
        observed = entry.follow(ratio)
        self._grow_older(row, entry)
        return observed

    def _grow_older(self, row: dict[int, _Entry], seen: _Entry) -> None:
        """Drafts that looked dear long ago are given the proportions that they were measured with, and so are tried.

        Held against the k that was seen last; what a plain step takes is control's to check.
        """
        for entry in row.values():
            entry.num_unseen += 1
        seen.num_unseen = 0
        drafts = [entry for k, entry in row.items() if k and not entry.loose]
        last = min(drafts, key=lambda entry: entry.num_unseen, default=seen)
        for entry in drafts:
            if entry.num_unseen >= STALE:
                entry.scale, entry.num_seen, entry.num_unseen = min(entry.scale, last.scale), 0, 0
                entry.known = entry.scale

    def _tighten(self, row: dict[int, _Entry], k: int, ratio: float, base: float) -> None:
        """A loose entry takes its first observation whole, and those of its bucket that are loose follow.

        More rows move the base: a token of context costs what it did. Between two k's that are known by now the others
        are interpolated; outside, they keep their proportion to the nearest known one.
        """
        row[k].source, row[k].loose = "seen", False
        base_ratio = base / row[k].base
        known = self._known(row)
        for other, entry in row.items():
            if other == k or (entry.loose and k == min((abs(near - other), near) for near in known)[1]):
                entry.base *= base_ratio if base > 0.0 else ratio
                entry.slope *= 1.0 if base > 0.0 else ratio
        self._interpolate_ks(row)

    def loose(self, num_rows: int) -> frozenset[int]:
        """The k's whose entries come from other buckets, and were not seen yet."""
        return frozenset(k for k, entry in self._row(num_rows).items() if entry.loose)

    def _row(self, num_rows: int) -> dict[int, _Entry]:
        """What is known of so many rows, by k."""
        bucket = self.bucket(num_rows)
        row = self._rows.setdefault(bucket, {})
        if len(row) < len(self.ks):
            self._from_buckets(bucket, row)
        return row

    def _known(self, row: dict[int, _Entry]) -> list[int]:
        """The k's that were measured or seen."""
        return sorted(k for k, entry in row.items() if entry.source in ("measured", "seen"))

    def _interpolate_ks(self, row: dict[int, _Entry]) -> None:
        """What lies between known k's of one bucket: drafts come one after another, so time grows evenly."""
        for first, last in pairwise(self._known(row)):
            for k in self.ks[self.ks.index(first) + 1 : self.ks.index(last)]:
                before = row.get(k)
                if before is None or before.loose:
                    row[k] = _between(row[first], row[last], (k - first) / (last - first))
                    row[k].loose = before is not None

    def _from_buckets(self, bucket: int, row: dict[int, _Entry]) -> None:
        """All missing entries of a bucket, from the nearest ones below and above that have them."""
        for k in self.ks:
            known = sorted(other for other, entries in self._rows.items() if k in entries)
            if not known or k in row:
                continue
            at = bisect_left(known, bucket)
            below, above = known[max(0, at - 1)], known[min(at, len(known) - 1)]
            part = (bucket - below) / (above - below) if below < above else 0.0
            row[k] = _between(self._rows[below][k], self._rows[above][k], part)
            row[k].loose, row[k].source = True, "interpolated" if below < above else "borrowed"

    def as_dict(self) -> list[dict[str, Any]]:
        """One row an entry, for JSON; times in milliseconds."""
        return [
            {
                "bucket": bucket,
                "k": k,
                "source": entry.source,
                "base_ms": round(1e3 * entry.base * entry.scale, 4),
                "us_per_1k_context": round(1e9 * entry.slope * entry.scale, 4),
                "observed_over_measured": round(entry.scale, 4),
                **({} if entry.experts is None else {"experts": round(entry.experts, 1)}),
            }
            for bucket, row in sorted(self._rows.items())
            for k, entry in sorted(row.items())
        ]


def _between(first: _Entry, last: _Entry, part: float) -> _Entry:
    """What lies `part` of the way from one entry to another, both as they are known by now."""
    base = first.base * first.scale * (1.0 - part) + last.base * last.scale * part
    slope = first.slope * first.scale * (1.0 - part) + last.slope * last.scale * part
    experts = None
    if first.experts is not None and last.experts is not None:
        experts = first.experts * (1.0 - part) + last.experts * part
    return _Entry(base, slope, "interpolated", experts=experts)
