"""The few values that everyone passes: a request, what the host plans for one forward, what the device answers.

A plan is host data and decides shapes; an Outcome is what came of it. A forward is enqueued when it is planned and read
later: nothing in a plan depends on tokens that the device may still be choosing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from outpace.config import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be answered."""

    id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """Resolved from `params.seed`, drawn when that is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a request's penalties and bans go by when it enters a row."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """The answer so far: not empty after a preemption."""
    stop_ids: tuple[int, ...]
    """Token ids that end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """What the device must know of a request that enters a row."""

    row: int
    num_cached: int
    """Positions already in the row's pages (a prefix hit)."""
    params: SamplingParams
    seed: int
    max_k: int
    """Drafts a cycle that the row may accept; 0 decodes it plainly."""
    past: Past | None = None
    """None where `params` leave the logits as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the host changed since the last plan: rows that were filled, pages that were added to a row's table."""

    rows: tuple[RowSettings, ...] = ()
    page_rows: tuple[int, ...] = ()
    page_columns: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()


class SamplingKind(Enum):
    """The work that choosing a token takes, for the whole batch: what its most demanding row needs."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    """With temperature alone."""
    TRUNCATED = "truncated"
    """With top-k, top-p or min-p."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a whole batch asks of the forward beyond logits: what its most demanding row needs, and no row more."""

    kind: SamplingKind = SamplingKind.GREEDY
    processed: bool = False
    """Some row has penalties, biases or bans."""
    num_logprobs: int | None = None
    """Alternatives to find beside each token's log-probability; None computes no log-probabilities."""
    masked: bool = False
    """Some row is under a grammar: the host brings masks before tokens are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclePlan:
    """A cycle of `k` drafts and one verify; k = 0 is a plain step."""

    rows: tuple[int, ...]
    k: int
    needs: Needs
    bound: int
    """No row reaches a position at or past this."""
    logprobs: tuple[tuple[int, int], ...] = ()
    """(place in `rows`, alternatives) of each row that wants to be told its tokens' log-probabilities."""
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens that a prefill computes on its way, for some of its rows."""

    places: tuple[int, ...]
    """Which of the plan's rows."""
    following: tuple[tuple[int, ...], ...]
    """For each, the prompt tokens behind its chunk's tokens; at the prompt's end one fewer than those."""
    nums: tuple[int, ...]
    """For each, the alternatives wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """The prompt tokens of each row that are computed now, and the token behind them, which may not count yet."""

    rows: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    ends: tuple[bool, ...]
    """Whether the row's prompt ends with its chunk, so that the token behind it counts."""
    fills_drafter: bool
    """The drafter's cache is filled beside the target's."""
    needs: Needs
    bound: int
    logprobs: tuple[tuple[int, int], ...] = ()
    """As a cycle's."""
    prompt: PromptLogprobs | None = None
    """Where rows want log-probabilities of their prompts."""
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpPlan:
    """Rows that decoded plainly and are to draft again: their drafter entries are filled in behind.

    Row i's features of `nums[i]` positions, from `starts[i]` to its length - 1, are read from what the device keeps of
    them. Its drafter then sees the entries from starts[i] + 1 on, or from where it did before.
    """

    rows: tuple[int, ...]
    starts: tuple[int, ...]
    nums: tuple[int, ...]
    missing: tuple[tuple[int, ...], ...]
    """Its tokens from there on whose features the device does not keep, since others computed them: the target computes
    them once more, and what it holds of them stays as it is."""
    cold: tuple[bool, ...]
    """Whether older entries are missing, so that the row's drafter sees nothing before these."""
    bound: int
    changes: Changes = field(default_factory=Changes)


Plan = CyclePlan | PrefillPlan | CatchUpPlan


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token under the target's own softmax, and the likeliest tokens at its place."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), likeliest first; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a forward chose: each row's new tokens. After prefill one; it counts only where the prompt ended."""

    tokens: tuple[tuple[int, ...], ...]
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """By place in the plan, of the rows that want them: one for each of the row's tokens."""
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """By place in the plan, of the rows that want them: of the prompt tokens behind each token of its chunk."""
    touched: int | None = None
    """Experts that a cycle touched, over all layers of a mixture."""


def accept_length(cycles: int, emitted: int, drafted_at: Sequence[int]) -> float | None:
    """Tokens of a cycle that drafted, the bonus token included; None where none did.

    A plain step among the cycles emits one token, and says nothing of drafts: it is left out.

    Args:
        cycles: all of them.
        emitted: tokens out of them.
        drafted_at: how many made a first draft, a second, …
    """
    drafting = sum(drafted_at[:1])
    # Tokens behind a stop string may be cut off cycles that stay counted.
    return max(1.0, (emitted - (cycles - drafting)) / drafting) if drafting else None
