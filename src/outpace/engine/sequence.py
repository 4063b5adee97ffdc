"""One request on its way: its tokens, its place on the device, and what its cycles came to."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field
from typing import Literal

from outpace.engine.grammars.matcher import Matcher
from outpace.speculation.acceptance import Acceptance
from outpace.types import Request, TokenLogprobs

FinishReason = Literal["stop", "length"]


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
    """A request in the engine.

    What is planned runs ahead of what is known: the scheduler moves the one when it enqueues a forward, `collect` the
    other when it has read what the forward chose.
    """

    request: Request
    max_tokens: int
    """New tokens at most, the context's end considered."""
    max_k: int
    """Drafts a cycle at most; 0 once the sequence does not draft (any more)."""
    stop_ids: frozenset[int]
    grammar: Matcher | None = None
    """Where its answer is in its grammar."""
    tokens: list[int] = field(init=False)
    """Prompt and answer, as far as it is known."""
    processed: bool = field(init=False)
    """Its logits are changed by penalties, biases or bans."""
    pages: list[int] = field(default_factory=list)
    row: int = -1

    num_cached: int = 0
    """Known: positions whose K/V is final."""
    num_drafter: int = 0
    """Positions whose drafter entries are final, or will be by a catch-up in flight; always 0 for a sequence that does
    not draft."""
    drafter_gap: bool = False
    """Known: entries before those are missing, so no page may be offered as filled."""

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Known: of the answer's tokens, if they are wanted."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Known: of the prompt's tokens from the second on, if they are wanted."""
    lists_prompt: bool = False
    """Planned: this time's prefill computes the latter."""

    prefill_end: int = 0
    """Planned: tokens that prefill computes."""
    num_prefilled: int = 0
    """Planned: of them, those enqueued or reused."""
    length_max: int = 0
    """Planned: positions in the cache once everything enqueued has run, at most."""
    num_sure: int = 0
    """Planned: tokens that the forwards in flight will choose, at least."""
    drafter_lags: bool = False
    """Planned: plain steps came last, so drafting needs a catch-up first."""
    recent_from: int = 0
    """Planned: the first position whose features the device keeps for its row, if they are recent."""

    num_reused: int | None = None
    """Prompt tokens that it found when it was first admitted, left by others; None before. What a preempted one finds
    is its own."""
    acceptance: Acceptance | None = None
    """What control expects of its drafts."""
    num_told: int = 0
    """New tokens that whoever asked has been told."""
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.processed = self.request.params.processed

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def answer(self) -> list[int]:
        """Its tokens behind the prompt, as far as they are known."""
        return self.tokens[len(self.request.prompt_ids) :]

    @property
    def closed(self) -> bool:
        """Its grammar ends here, and not with a stop token."""
        return self.grammar is not None and self.num_new > 0 and self.grammar.closed_at == self.num_new

    @property
    def failure(self) -> str | None:
        """Why it cannot be answered to the end."""
        return None if self.grammar is None else self.grammar.failure

    @property
    def over(self) -> bool:
        """Nothing more will come of it."""
        return self.finish_reason is not None or self.failure is not None

    @property
    def masked(self) -> bool:
        """Its tokens are chosen under a grammar."""
        return self.grammar is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Read off the tokens, so that it can never contradict them."""
        if not self.num_new:
            return None
        if self.tokens[-1] in self.stop_ids or self.closed:
            return "stop"
        return "length" if self.num_new >= self.max_tokens else None

    @property
    def misses_prompt_logprobs(self) -> bool:
        """They are wanted and not all known."""
        wanted = self.request.params.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < len(self.request.prompt_ids) - 1

    @property
    def prefilled(self) -> bool:
        """Everything before the first cycle is enqueued."""
        return self.num_prefilled == self.prefill_end

    @property
    def length_known(self) -> bool:
        """`length_max` is exact: what is in flight chooses one token each."""
        return self.length_max - self.num_cached == self.num_sure

    @property
    def num_left(self) -> int:
        """Tokens that are still to come behind those in flight, at most."""
        return self.max_tokens - self.num_new - self.num_sure

    @property
    def surely_done(self) -> bool:
        """What is in flight already brings `max_tokens`."""
        return self.num_left <= 0

    def extend(self, run: TokenIds[int], logprobs: TokenIds[TokenLogprobs] = ()) -> int:
        """Appends a run of tokens, cut exactly at its end; returns how many it kept.

        The end is the first stop token, `max_tokens`, or where the grammar ends or is left.

        Log-probabilities come before their tokens: an interrupt between leaves some too many, which go here.
        """
        kept = list(run[: self.max_tokens - self.num_new])
        end = next((place for place, token in enumerate(kept, start=1) if token in self.stop_ids), len(kept))
        if self.grammar is not None:
            end = self.grammar.read(self.answer, kept[:end], self.stop_ids)
        self.logprobs[self.num_new :] = logprobs[:end]
        self.tokens += kept[:end]
        return end
