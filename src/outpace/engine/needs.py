"""What requests ask of a forward beyond logits: sampling, penalties and bans, log-probabilities.

A batch does what its most demanding row needs, and nothing that no row does.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed

from outpace.config import MAX_LOGPROBS
from outpace.engine.sequence import Sequence
from outpace.types import Needs, Past, PromptLogprobs, SamplingKind

LOGPROB_STEPS = (0, 5, MAX_LOGPROBS)
"""Alternatives that a forward finds: few numbers, since every one makes frames of its own."""


def needs_of(chosen: Listed[Sequence]) -> Needs:
    """Of a whole batch."""
    wanted = [num for s in chosen if (num := s.request.params.logprobs) is not None]
    num_logprobs = next(step for step in LOGPROB_STEPS if step >= max(wanted)) if wanted else None
    return Needs(_kind(chosen), any(s.processed for s in chosen), num_logprobs, any(s.masked for s in chosen))


def _kind(chosen: Listed[Sequence]) -> SamplingKind:
    sampled = [s.request.params for s in chosen if not s.request.params.greedy]
    if any(p.top_k or p.top_p < 1.0 or p.min_p for p in sampled):
        return SamplingKind.TRUNCATED
    return SamplingKind.SAMPLED if sampled else SamplingKind.GREEDY


def logprobs_of(chosen: Listed[Sequence]) -> tuple[tuple[int, int], ...]:
    """(place, alternatives) of the rows that want log-probabilities of their answers."""
    numbers = ((place, s.request.params.logprobs) for place, s in enumerate(chosen))
    return tuple((place, num) for place, num in numbers if num is not None)


def prompt_logprobs_of(chosen: Listed[Sequence], chunks: Listed[tuple[int, ...]]) -> PromptLogprobs | None:
    """Of the rows whose prompts' log-probabilities are wanted and not known; the chunks are not counted yet."""
    asked = [
        (place, _following(s, len(chunk)), s.request.params.prompt_logprobs or 0)
        for place, (s, chunk) in enumerate(zip(chosen, chunks, strict=True))
        if s.lists_prompt
    ]
    if not asked:
        return None
    places, following, nums = zip(*asked, strict=True)
    return PromptLogprobs(places=places, following=following, nums=nums)


def _following(sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
    """The prompt tokens behind each of the next `num_tokens`."""
    begin = sequence.num_prefilled + 1
    return sequence.request.prompt_ids[begin : begin + num_tokens]


def past_of(sequence: Sequence) -> Past | None:
    """What penalties and bans of a sequence that enters a row go by; None if it has none."""
    if not sequence.processed:
        return None
    prompt_ids, min_tokens = sequence.request.prompt_ids, sequence.request.params.min_tokens
    return Past(
        prompt_ids=prompt_ids,
        output_ids=tuple(sequence.tokens[len(prompt_ids) :]),
        stop_ids=tuple(sequence.stop_ids) if min_tokens else (),
    )
