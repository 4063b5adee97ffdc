"""When control is to measure a plain step once more: what drafting brings is held against it, and it may be old.

While drafts pay no plain step runs, so nothing corrects what is known of one. A machine that was busy when one was
measured makes drafting look too good, for ever if nobody looks; one that is busy now makes it look too dear. So a plain
step is measured again now and then, and at once when cycles are seen to take another time than they did.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECK_STEPS = 4
CHECK_EVERY = 400
"""Cycles of a bucket after which what is known of its plain step is old."""
CLEAR_EVERY = 1600
"""The same where drafting looks far better."""
DOUBT_EVERY = 100
"""Cycles between checks at least, however often cycles change."""


@dataclass(slots=True)
class _Bucket:
    num_cycles: int = 0
    """That drafted, since the last check or the first cycle."""
    num_steps: int = 0
    """Plain steps of a check that is under way."""
    checked: bool = False
    doubted: bool = False
    num_waited: int = 0

    @property
    def is_old(self) -> bool:
        return not self.checked or self.num_cycles >= CHECK_EVERY


class PlainChecks:
    """By bucket; a check is a few plain steps in a row."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}

    def _of(self, bucket: int) -> _Bucket:
        return self._buckets.setdefault(bucket, _Bucket())

    def due(self, bucket: int, *, clear: bool) -> bool:
        """Whether the next cycle is to be a plain step.

        Args:
            bucket: of the batch.
            clear: drafting looks so much better that hardly an old figure explains it.
        """
        of = self._of(bucket)
        if of.doubted:
            return of.num_steps > 0 or not of.checked or of.num_cycles >= DOUBT_EVERY
        return of.num_cycles >= CLEAR_EVERY if clear else of.num_steps > 0 or of.is_old

    def waits(self, bucket: int) -> bool:
        """Whether to go on waiting for the first plain step of a bucket that was not measured."""
        of = self._of(bucket)
        of.num_waited += 1
        return of.num_waited <= CHECK_STEPS

    def seen(self, bucket: int, k: int, *, shifted: bool) -> None:
        """A cycle is over.

        Args:
            bucket: of its batch.
            k: its drafts.
            shifted: such cycles take another time than they did, or less than the plain step that is part of them. A
                check that finds this out is checked once more.
        """
        of = self._of(bucket)
        if k:
            of.num_cycles, of.num_steps = of.num_cycles + 1, 0
        elif of.is_old or of.doubted or of.num_steps:
            of.num_steps += 1
        if of.num_steps == CHECK_STEPS:
            of.num_cycles = of.num_steps = 0
            of.checked, of.doubted = True, False
        of.doubted |= shifted
