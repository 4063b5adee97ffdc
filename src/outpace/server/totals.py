"""What a server's answers came to since it started, counted as their pieces come."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.server.jobs import Job
from outpace.server.wire import Piece


@dataclass(slots=True)
class Totals:
    """Sums over all answers, aborted ones too."""

    tokens: int = 0
    cycles: int = 0
    emitted: int = 0
    """Tokens out of those cycles."""
    drafted: int = 0
    accepted: int = 0
    first_drafted: int = 0
    first_accepted: int = 0
    """Of the first drafts of cycles."""
    reused: int = 0
    """Prompt tokens that a cached prefix saved."""

    def add(self, job: Job, piece: Piece) -> None:
        """A piece came; `job` holds what came before it."""
        before, now = job.tally, piece.tally
        self.tokens += len(piece.token_ids)
        # An answer that was done over counts from 0 again.
        for name in ("cycles", "emitted", "drafted", "accepted", "first_drafted", "first_accepted", "reused"):
            setattr(self, name, getattr(self, name) + max(0, getattr(now, name) - getattr(before, name)))
