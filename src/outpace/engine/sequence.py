"""One request on its way: its tokens, its place on the device, and what its cycles came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outpace.types import Request

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True)
class Counts:
    """What the cycles of one request did. Tokens that were cut off behind a stop count nowhere."""

    cycles: int = 0
    emitted: int = 0
    """Tokens that reached the user out of these cycles; the first token comes from prefill and is not among them."""
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, num_drafts: int, num_chosen: int, num_kept: int) -> None:
        """One cycle chose `num_chosen` tokens and a stop left `num_kept`; drafts behind the cut say nothing."""
        self.cycles += 1
        self.emitted += num_kept
        num_judged = num_kept if num_kept < num_chosen else num_drafts
        num_accepted = min(num_kept, num_chosen - 1)
        while len(self.drafted_at) < num_judged:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
        for place in range(num_judged):
            self.drafted_at[place] += 1
            self.accepted_at[place] += place < num_accepted


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine."""

    request: Request
    max_tokens: int
    """New tokens at most, the context's end considered."""
    max_k: int
    """Drafts a cycle at most; 0 once the sequence does not draft (any more)."""
    stop_ids: frozenset[int]
    tokens: list[int] = field(init=False)
    """Prompt and answer."""
    pages: list[int] = field(default_factory=list)
    row: int = -1
    num_cached: int = 0
    """Positions whose K/V is computed."""
    num_drafter: int = 0
    """Positions whose drafter entries are final; always 0 for a sequence that does not draft."""
    num_reused: int = 0
    """Prompt tokens that a prefix hit saved, over all times the sequence was admitted."""
    primed: bool = False
    """Prefill is done and has chosen a token: the row is ready for cycles, and only its last token is not cached."""
    finish_reason: FinishReason | None = None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    def extend(self, run: list[int]) -> list[int]:
        """Appends a run of tokens, cut exactly at the first stop token or at `max_tokens`; returns what was kept."""
        kept = []
        for token in run:
            kept.append(token)
            if token in self.stop_ids:
                self.finish_reason = "stop"
            elif self.num_new + len(kept) >= self.max_tokens:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        self.tokens += kept
        return kept
