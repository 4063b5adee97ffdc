"""What a caller gets back: a whole answer, or its pieces while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from outpace.engine.sequence import Counts, FinishReason
from outpace.types import TokenLogprobs, accept_length


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
    """Prompt tokens whose prefill was saved by a prefix that others had left."""
    simulated: bool = False
    """Acceptance was simulated: the answer is worth nothing but its speed."""
    lossy: bool = False
    """Drafted tokens shared experts (`EngineConfig.expert_reuse`): the answer need not be plain decoding's."""

    @classmethod
    def of(cls, counts: Counts, num_reused: int, *, simulated: bool, lossy: bool = False) -> RequestStats:
        return cls(
            cycles=counts.cycles,
            emitted=counts.emitted,
            drafted_at=tuple(counts.drafted_at),
            accepted_at=tuple(counts.accepted_at),
            reused=num_reused,
            simulated=simulated,
            lossy=lossy,
        )

    @classmethod
    def none(cls, *, simulated: bool, lossy: bool = False) -> RequestStats:
        """Before anything ran."""
        return cls.of(Counts(), 0, simulated=simulated, lossy=lossy)

    def cut(self, num_tokens: int, before: RequestStats) -> RequestStats:
        """Without the last tokens, which lay behind a stop string: as `Counts` would have counted a stop token there.

        Where several cycles came between (a stream that waited while others took turns), their drafts are left as they
        were counted: which cycle a token came from is not known.

        Args:
            num_tokens: how many were cut off; they came after `before`.
            before: the figures when the request was looked at last.
        """
        kept = self.emitted - before.emitted - num_tokens
        if kept <= 0:
            return replace(before, reused=self.reused)
        emitted = self.emitted - num_tokens
        if self.cycles - before.cycles > 1:
            return replace(self, emitted=emitted)
        drafted_at = self.drafted_at[:kept] + before.drafted_at[kept:]
        accepted_at = self.accepted_at[:kept] + before.accepted_at[kept:]
        return replace(self, emitted=emitted, drafted_at=drafted_at, accepted_at=accepted_at)

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
            lossy=any(s.lossy for s in listed),
        )

    @property
    def accept_length(self) -> float:
        """Tokens per cycle that drafted, bonus token included. 1, a plain step's, if none did; 0 if no cycle ran."""
        return accept_length(self.cycles, self.emitted, self.drafted_at) or float(self.cycles > 0)

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
    """The last of them is the stop token, or the one that completed the stop string, if one ended the answer."""
    text: str
    """Cut before what stopped it. Empty for a checkpoint without a tokenizer."""
    finish_reason: FinishReason
    stats: RequestStats
    stopped_by: str | int | None = None
    """The stop string or the id of `stop_token_ids` that ended the answer; None for the model's own end."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None if not asked for."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One for each of `prompt_ids`, None for the first of them; None if not asked for."""

    @classmethod
    def of(cls, prompt_ids: Sequence[int], chunks: Sequence[Chunk]) -> Result:
        """The answer that was written in these chunks."""
        last = chunks[-1]
        assert last.finish_reason is not None
        logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
        return cls(
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            stopped_by=last.stopped_by,
            stats=last.stats,
            logprobs=tuple(token for run in logprobs for token in run) if logprobs else None,
            prompt_logprobs=chunks[0].prompt_logprobs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of an answer while it is written: whole characters only, and nothing that is taken back."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
    stopped_by: str | int | None = None
    """As in `Result`."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None if not asked for."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """As in `Result`, with the first chunk."""
