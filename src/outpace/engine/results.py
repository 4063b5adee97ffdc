"""What a caller gets back: a whole answer, or its pieces while it is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outpace.engine.sequence import Counts, FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """What speculation came to for one request. Only tokens that reached the user count."""

    cycles: int
    """Verify passes, or plain steps with k = 0."""
    emitted: int
    """Tokens out of those cycles; the first token of an answer comes from prefill and is not among them."""
    drafted: int
    accepted: int
    acceptance_by_position: tuple[float, ...]
    """Accepted ÷ drafted for the first draft of a cycle, the second, …; the first refused draft refuses the rest."""
    reused: int
    """Prompt tokens that a cached prefix saved."""

    @property
    def accept_length(self) -> float:
        """Tokens per cycle, bonus token included; 1 is plain decoding. 0 if no cycle ran."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @classmethod
    def of(cls, counts: Counts, num_reused: int) -> RequestStats:
        rates = tuple(a / d for a, d in zip(counts.accepted_at, counts.drafted_at, strict=True) if d)
        return cls(
            cycles=counts.cycles,
            emitted=counts.emitted,
            drafted=sum(counts.drafted_at),
            accepted=sum(counts.accepted_at),
            acceptance_by_position=rates,
            reused=num_reused,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "accept_length": self.accept_length}


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
