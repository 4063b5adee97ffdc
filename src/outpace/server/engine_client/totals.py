"""What a server's answers came to since it started, counted as their pieces come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from outpace.server.engine_client.jobs import Job
from outpace.server.wire import Piece


@dataclass(slots=True)
class Totals:
    """Sums over all answers, aborted ones too."""

    tokens: int = 0
    cycles: int = 0
    emitted: int = 0
    """Tokens out of those cycles."""
    reused: int = 0
    """Prompt tokens that a cached prefix saved."""
    untried: int = 0
    """Answers whose grammar could not be tried."""
    drafted_at: tuple[int, ...] = ()
    """How many cycles made a first draft, a second, …"""
    accepted_at: tuple[int, ...] = ()
    """How many of these were accepted."""

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at)

    def add(self, job: Job, piece: Piece) -> None:
        """A piece came; `job` holds what came before it."""
        before, now = job.tally, piece.tally
        self.tokens += len(piece.token_ids)
        # An answer that was done over counts from 0 again.
        self.cycles += max(0, now.cycles - before.cycles)
        self.emitted += max(0, now.emitted - before.emitted)
        self.reused += max(0, now.reused - before.reused)
        self.drafted_at = _grown(self.drafted_at, before.drafted_at, now.drafted_at)
        self.accepted_at = _grown(self.accepted_at, before.accepted_at, now.accepted_at)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"drafted": self.drafted, "accepted": self.accepted}


def by_place(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Sums of counts by place, of which some have fewer places than others."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def _grown(total: tuple[int, ...], before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    if now == before:
        return total
    return tuple(sum_ + max(0, new - old) for sum_, old, new in zip_longest(total, before, now, fillvalue=0))
