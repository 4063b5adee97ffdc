"""What a caller gets back: a whole answer, or its pieces while it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from outpace.engine.sequence import Counts, FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """What speculation came to for one request. Only tokens that reached the user count."""

    cycles: int
    """Verify passes, or plain steps with k = 0."""
    emitted: int
    """Tokens out of those cycles. Those that prefill chose are not among them: the first, and one a preemption."""
    drafted_at: tuple[int, ...]
    """How often a cycle made a first draft, a second, …"""
    accepted_at: tuple[int, ...]
    """How many of them were accepted; the first refused draft refuses the rest of its cycle."""
    reused: int
    """Tokens whose prefill a cached prefix saved."""
    simulated: bool = False
    """Acceptance was simulated: the answer is worth nothing but its speed."""

    @classmethod
    def of(cls, counts: Counts, num_reused: int, *, simulated: bool) -> RequestStats:
        return cls(
            cycles=counts.cycles,
            emitted=counts.emitted,
            drafted_at=tuple(counts.drafted_at),
            accepted_at=tuple(counts.accepted_at),
            reused=num_reused,
            simulated=simulated,
        )

    @classmethod
    def total(cls, stats: Iterable[RequestStats]) -> RequestStats:
        """All requests as if they were one."""
        listed = list(stats)
        return cls(
            cycles=sum(s.cycles for s in listed),
            emitted=sum(s.emitted for s in listed),
            drafted_at=tuple(map(sum, zip_longest(*(s.drafted_at for s in listed), fillvalue=0))),
            accepted_at=tuple(map(sum, zip_longest(*(s.accepted_at for s in listed), fillvalue=0))),
            reused=sum(s.reused for s in listed),
            simulated=any(s.simulated for s in listed),
        )

    @property
    def accept_length(self) -> float:
        """Tokens per cycle, bonus token included; 1 is plain decoding. 0 if no cycle ran."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Accepted ÷ drafted at each place of a cycle."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **asdict(self),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_by_position": self.acceptance_by_position,
            "accept_length": self.accept_length,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One finished answer."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The stop token, if one ended the answer, is the last of them."""
    text: str
    """Empty for a checkpoint without a tokenizer."""
    finish_reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of an answer while it is written: whole characters only."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
