"""What the answers of one run come to. Failed ones count where they must: as errors, and against goodput.

| figure | definition |
|---|---|
| time to first token | from sending the request to the first event with text |
| time per output token | from the first event to the last ÷ the tokens that came after the first event |
| inter-chunk latency | between one event with tokens and the next: what a reader waits |
| inter-token latency | the same ÷ the tokens of the event, each token counted: what a token takes |
| tok/s per user | tokens of an answer ÷ the whole time of its request |
| decode tok/s | tokens after the first event ÷ the time they took: 1 ÷ time per output token |
| total tok/s | tokens of all answers ÷ the run's wall-clock time |
| goodput | requests a second, and their tok/s, that kept within all limits |

Intervals are of the bootstrap over requests: how far a figure would move with other prompts of their kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.lab.bench.answer import Answer
from outpace.lab.bench.load import Driven
from outpace.lab.bench.settings import Load
from outpace.lab.intervals.bootstrap import Rate, Spread, rate, spread, weighted_spread

FIRST_EDGE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Decoding while context was longer than `above` and at most `to` tokens long."""

    above: int
    to: int | None
    num_requests: int
    tokens: float
    tok_s: Rate
    """Of one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that kept within every limit; failed ones did not."""

    num_good: int
    share: float
    requests_s: float
    tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Times in seconds."""

    num_requests: int
    num_failed: int
    errors: dict[str, int]
    """By kind."""
    examples: dict[str, str]
    """The first of each kind."""
    seconds: float
    prompt_tokens: Spread | None
    completion_tokens: Spread | None
    total_tokens: int
    """Of all answers that ended well."""
    cached_tokens: int
    """Of their prompts, as the server says."""
    ttft_s: Spread | None
    tpot_s: Spread | None
    latency_s: Spread | None
    inter_token_s: Spread | None
    inter_chunk_s: Spread | None
    tokens_per_chunk: float | None
    tok_s_per_user: Spread | None
    decode_tok_s: Spread | None
    total_tok_s: Rate | None
    requests_s: float
    mean_concurrency: float
    by_context: tuple[Bucket, ...]
    goodput: Goodput | None
    """None where no limit was given."""


def figures(driven: Driven, load: Load) -> Figures:
    """Everything that follows from the answers."""
    good = [answer for answer in driven.answers if answer.ok]
    failed = [answer.error for answer in driven.answers if answer.error is not None]
    gaps = [gap for answer in good for gap in answer.gaps()]
    seconds, busy = driven.seconds, sum(answer.ended_s - answer.sent_s for answer in good)
    tpot = [value for answer in good if (value := answer.tpot_s) is not None]
    concurrency = busy / seconds if seconds > 0 else 0.0
    return Figures(
        num_requests=len(driven.answers),
        num_failed=len(failed),
        errors=dict(Counter(map(kind, failed))),
        examples={kind(error): error for error in reversed(failed)},
        seconds=seconds,
        prompt_tokens=spread([float(a.prompt_tokens) for a in good if a.prompt_tokens is not None]),
        completion_tokens=spread([float(answer.tokens) for answer in good]),
        total_tokens=sum(answer.tokens for answer in good),
        cached_tokens=sum(answer.cached_tokens or 0 for answer in good),
        ttft_s=spread([answer.ttft_s for answer in good]),
        tpot_s=spread(tpot),
        latency_s=spread([answer.latency_s for answer in good]),
        inter_token_s=weighted_spread([(gap / tokens, tokens) for gap, tokens in gaps]),
        inter_chunk_s=weighted_spread([(gap, 1.0) for gap, _ in gaps]),
        tokens_per_chunk=sum(tokens for _, tokens in gaps) / len(gaps) if gaps else None,
        tok_s_per_user=spread([answer.tokens / answer.latency_s for answer in good if answer.latency_s > 0]),
        decode_tok_s=spread([1.0 / value for value in tpot]),
        total_tok_s=rate([(float(a.tokens), a.ended_s - a.sent_s) for a in good], concurrency),
        requests_s=len(good) / seconds if seconds > 0 else 0.0,
        mean_concurrency=concurrency,
        by_context=_by_context(good, load.context_edges),
        goodput=_goodput(driven, good, load),
    )


def kind(error: str) -> str:
    """Of an answer's error: what stands before its details."""
    return error.partition(":")[0]


def _by_context(answers: Sequence[Answer], edges: Sequence[int]) -> tuple[Bucket, ...]:
    longest = max(((a.prompt_tokens or 0) + a.tokens for a in answers), default=0)
    if not edges:
        grown = [FIRST_EDGE]
        while grown[-1] < longest:
            grown.append(2 * grown[-1])
        edges = grown
    parts = [answer.by_context(edges) for answer in answers]
    found = []
    for place, (above, to) in enumerate(zip((0, *edges), (*edges, None), strict=True)):
        mine = [each[place] for each in parts if each[place][1] > 0]
        if (speed := rate(mine)) is not None:
            found.append(
                Bucket(
                    above=above,
                    to=to,
                    num_requests=len(mine),
                    tokens=sum(tokens for tokens, _ in mine),
                    tok_s=speed,
                )
            )
    return tuple(found)


def _goodput(driven: Driven, answers: Sequence[Answer], load: Load) -> Goodput | None:
    limits = (load.max_ttft_ms, load.max_tpot_ms, load.max_latency_ms)
    if limits == (None, None, None) or driven.seconds <= 0:
        return None
    good = [
        answer
        for answer in answers
        if all(
            most is None or 1e3 * value <= most
            for most, value in zip(limits, (answer.ttft_s, answer.tpot_s or 0.0, answer.latency_s), strict=True)
        )
    ]
    return Goodput(
        num_good=len(good),
        share=len(good) / len(driven.answers),
        requests_s=len(good) / driven.seconds,
        tok_s=sum(answer.tokens for answer in good) / driven.seconds,
    )
