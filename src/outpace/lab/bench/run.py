"""Measures one server from its first answer to its record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from outpace.errors import ConfigError
from outpace.lab.bench import exposed
from outpace.lab.bench.answer import Answer
from outpace.lab.bench.asks import Ask, of_length, read_asks
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.exposed import Acceptance, Metrics
from outpace.lab.bench.figures import Figures, figures
from outpace.lab.bench.load import Driven, drive
from outpace.lab.bench.progress import Progress
from outpace.lab.bench.record import SCHEMA, BenchRecord, request_of
from outpace.lab.bench.server_facts import ServerFacts, ask_server
from outpace.lab.bench.settings import Asking, Load
from outpace.wording import count_of

SAMPLE_S = 1.0
"""Between two readings of gauges."""
OTHERS = 1.02
"""A server that wrote this many times the tokens that were received here wrote some for others."""


class Tokens(Protocol):
    """What counts the tokens of a text."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that has answered once: what it is, and how it counts."""

    facts: ServerFacts
    tokens: Tokens | None
    """Counts where it does not."""

    def counted(self, answer: Answer) -> Answer:
        """With its tokens counted here, if the server did not."""
        if answer.completion_tokens is not None or not answer.ok:
            return answer
        if self.tokens is None:
            return replace(answer, error="no usage: the server sent none with this answer")
        return replace(answer, completion_tokens=len(self.tokens.encode(answer.text)), counted_by="tokenizer")


async def make_ready(endpoint: Endpoint, asking: Asking, ask: Ask, tokens: Tokens | None) -> Ready:
    """Asks once and finds out what the figures need.

    Raises:
        ConfigError: it cannot be reached, refuses, or its tokens cannot be counted.
    """
    facts = await ask_server(endpoint, asking.model_name)
    first = await endpoint.negotiate(ask, asking, facts.model, is_sglang=facts.engine == "sglang")
    if first.completion_tokens is None and tokens is None:
        raise ConfigError(
            f"{endpoint.url} sends no usage, so its tokens cannot be counted, and chunks are no tokens: name the "
            "model's tokenizer with --tokenizer"
        )
    return Ready(facts, tokens)


async def bench(
    endpoint: Endpoint,
    asking: Asking,
    load: Load,
    *,
    tokens: Tokens | None = None,
    client: Callable[[], dict[str, Any]],
    progress: Callable[[str], None] = lambda text: None,
    may_be_cut: bool = False,
) -> BenchRecord:
    """Warms up, measures, sums up.

    Args:
        tokens: counts tokens where the server sends no usage.
        client: takes the fingerprint of this machine.
        progress: told what goes on.
        may_be_cut: being cancelled while it measures ends it with what was answered until then.

    Raises:
        ConfigError: the server cannot be measured; the message says why and what would help.
    """
    num_warmup = max(load.num_warmup, load.most_at_once) if load.num_warmup else 0
    asks = read_asks(asking.workload, max(1, num_warmup) + load.num_prompts)
    progress("asking the server what it is")
    ready = await make_ready(endpoint, asking, asks[0], tokens)
    if asking.input_tokens is not None:
        asks = await _of_length(endpoint, asks, asking, ready)
    warm, asks = asks[:num_warmup], asks[-load.num_prompts :]
    started_at, machine = datetime.now(UTC).isoformat(timespec="seconds"), client()
    progress("warming up")
    await drive(endpoint, warm, asking, ready.facts.model, concurrency=load.most_at_once)
    told_of = Progress(len(asks), progress)
    driven, readings = await _measured(endpoint, asks, asking, load, ready, told_of, may_be_cut=may_be_cut)
    found = figures(driven, load)
    told = _acceptance(driven, readings, ready.facts)
    good = [answer for answer in driven.answers if answer.ok]
    lag = float(np.quantile(driven.client_lag_s, 0.99)) if driven.client_lag_s else 0.0
    return BenchRecord(
        schema=SCHEMA,
        started_at=started_at,
        server=ready.facts,
        asking=asking,
        load=load,
        num_warmup=num_warmup,
        usage_asked=endpoint.usage,
        counted_by="tokenizer" if any(a.counted_by == "tokenizer" for a in good) else "usage",
        placed_by="usage" if good and all(a.placed_by == "usage" for a in good) else "characters",
        figures=found,
        acceptance=told,
        implied_cycle_s=_cycle(found, told, load),
        client_lag_p99_s=lag,
        cut_short=driven.cut_short,
        notes=tuple(_notes(asking, load, driven, found, readings, ready.facts, lag)),
        requests=tuple(request_of(answer, driven.began_s) for answer in driven.answers),
        client=machine,
    )


async def _measured(
    endpoint: Endpoint,
    asks: Sequence[Ask],
    asking: Asking,
    load: Load,
    ready: Ready,
    progress: Progress,
    *,
    may_be_cut: bool,
) -> tuple[Driven, list[Metrics]]:
    """The run, and the server's metrics before, now and then during, and after it."""
    readings: list[Metrics] = []
    has_metrics = ready.facts.has_metrics
    if has_metrics:
        readings.append(exposed.read_metrics(await endpoint.metrics() or ""))
    sampler = asyncio.create_task(_sample(endpoint, readings)) if ready.facts.engine == "sglang" else None
    try:
        driven = await drive(
            endpoint,
            asks,
            asking,
            ready.facts.model,
            concurrency=load.most_at_once,
            request_rate=load.request_rate,
            on_done=lambda answer: progress.done(),
            may_be_cut=may_be_cut,
        )
    finally:
        if sampler is not None:
            sampler.cancel()
            with suppress(asyncio.CancelledError, ConfigError):
                await sampler
    if has_metrics:
        with suppress(ConfigError):  # it died during the run: the answers say so
            readings.append(exposed.read_metrics(await endpoint.metrics() or ""))
    return replace(driven, answers=tuple(map(ready.counted, driven.answers))), readings


async def _sample(endpoint: Endpoint, readings: list[Metrics]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        readings.append(exposed.read_metrics(await endpoint.metrics() or ""))


async def _of_length(endpoint: Endpoint, asks: Sequence[Ask], asking: Asking, ready: Ready) -> list[Ask]:
    """Cut to a number of tokens by what one token is in characters, of which the server's count of one prompt tells.

    Raises:
        ConfigError: nobody can count a prompt's tokens.
    """
    assert asking.input_tokens is not None
    (probe,) = of_length(asks[:1], asking.input_tokens, 4.0, asking.seed)
    if ready.tokens is not None:
        num_tokens: int | None = len(ready.tokens.encode(probe.prompt))
    else:
        answer = await endpoint.ask(replace(probe, max_tokens=1), asking, ready.facts.model, 0)
        num_tokens = answer.prompt_tokens
    if not num_tokens:
        raise ConfigError(f"{endpoint.url} does not count prompt tokens; name the model's tokenizer with --tokenizer")
    return of_length(asks, asking.input_tokens, len(probe.prompt) / num_tokens, asking.seed)


def _acceptance(driven: Driven, readings: Sequence[Metrics], facts: ServerFacts) -> tuple[Acceptance, ...]:
    found = [exposed.of_requests(driven.answers)]
    if len(readings) >= 2:
        found += [
            exposed.of_counters(readings[0], readings[-1]),
            exposed.of_gauge(readings[1:], facts.num_draft_tokens),
        ]
    return tuple(each for each in found if each is not None)


def _cycle(found: Figures, told: Sequence[Acceptance], load: Load) -> float | None:
    alone = load.request_rate is None and load.most_at_once == 1
    if not (told and alone and found.decode_tok_s):
        return None
    return told[0].tokens_a_cycle / found.decode_tok_s.median


def _notes(
    asking: Asking,
    load: Load,
    driven: Driven,
    found: Figures,
    readings: Sequence[Metrics],
    facts: ServerFacts,
    lag_s: float,
) -> list[str]:
    notes = []
    if driven.cut_short:
        notes.append(
            f"cut short: {len(driven.answers)} of {load.num_prompts} requests were answered; what was under way is in "
            "no figure"
        )
    notes += [f"of the server: {mark}" for mark in facts.marks]
    if not facts.has_metrics:
        notes.append("the server shows no metrics: acceptance is known only if its answers tell it")
    if any(answer.ok and answer.placed_by == "characters" for answer in driven.answers):
        notes.append("tokens are counted once an answer; within it they are placed in proportion to its characters")
    if any(answer.undercounted for answer in driven.answers):
        notes.append("answers came in more pieces than the server counts tokens: its counts may be too low")
    if len({answer.id.partition(" (")[0] for answer in driven.answers}) < len(driven.answers):
        notes.append("prompts were asked more than once: a server that keeps prefixes answers those sooner")
    wrote = exposed.generated(readings[0], readings[-1]) if len(readings) >= 2 else None
    if wrote is not None and not found.num_failed and wrote > OTHERS * found.total_tokens:
        notes.append(
            f"the server wrote {wrote:,.0f} tokens meanwhile and {found.total_tokens:,} came here: others use it"
        )
    if asking.ignore_eos and (short := sum(a.ok and a.finish_reason != "length" for a in driven.answers)):
        notes.append(
            f"{count_of(short, 'answer')} ended before max_tokens in spite of ignore_eos: the server does not honour it"
        )
    if found.inter_chunk_s is not None and lag_s > 0.1 * found.inter_chunk_s.median:
        notes.append(
            f"the client was up to {1e3 * lag_s:.1f} ms late (99th percentile): times between chunks are not exact"
        )
    return notes
