"""A live server as evidence: what it says of itself, and what its counters did while it was watched or asked.

Ours tells its settings, its decisions and what a plain step costs (/v1/outpace/state); SGLang its settings
(/server_info) and gauges; vLLM counters alone. What a server does not tell is unknown, and is said so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from outpace.lab.bench import exposed
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.exposed import Acceptance, Metrics, Source
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.run import bench
from outpace.lab.bench.server_facts import STATE, ServerFacts, ask_server
from outpace.lab.bench.settings import Asking, Load
from outpace.lab.doctor import our_server
from outpace.lab.doctor.evidence import Accepted, Run, Value, Window
from outpace.lab.doctor.finding import Cite, Finding, Unknown
from outpace.lab.doctor.our_server import within

RUNNING = ("outpace_running", "vllm:num_requests_running", "sglang:num_running_reqs")
SAMPLE_S = 0.5
SOURCES: dict[Source, str] = {
    "requests": "by its answers",
    "counters": "by its counters",
    "gauge": "by a gauge of its last intervals",
}
MEANT = {"k": "num_speculative_tokens"}
"""Our own names for what logs call otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One server, watched or asked."""

    run: Run
    findings: tuple[Finding, ...]
    not_known: tuple[Unknown, ...]


async def watch(endpoint: Endpoint, seconds: float, progress: Callable[[str], None] = lambda text: None) -> Seen:
    """Reads its metrics for a while and sends it nothing.

    Raises:
        ConfigError: it cannot be reached.
    """
    facts = await ask_server(endpoint, None)
    readings: list[Metrics] = []
    began = time.monotonic()
    progress(f"watching for {seconds:g} s")
    while facts.has_metrics and (len(readings) < 2 or time.monotonic() - began < seconds):
        readings.append(exposed.read_metrics(await endpoint.metrics() or ""))
        await asyncio.sleep(min(SAMPLE_S, max(0.01, seconds - (time.monotonic() - began))))
    passed = time.monotonic() - began
    if facts.has_metrics:
        readings.append(exposed.read_metrics(await endpoint.metrics() or ""))
    state = await _state(endpoint, facts)
    told, since_start = _told(facts, readings)
    running = round(fmean(filter(None, map(_running, readings)))) if any(map(_running, readings)) else 0
    wrote = exposed.generated(readings[0], readings[-1]) if readings else None
    windows = []
    if wrote and passed > 0:
        length = told.accept_length if told and not since_start else 1.0
        cite = Cite(f"{facts.url}/metrics, {passed:.0f} s")
        windows.append(Window(cite, 1, length, length * passed / wrote, None, _drafts(told) and not since_start))
    how = "by its counters since it was started" if since_start else f"{_how(told)} while it was watched"
    return _seen(facts, state, windows, max(1, running), told, how)


async def ask(
    endpoint: Endpoint,
    asking: Asking,
    num_prompts: int,
    client: Callable[[], dict[str, Any]],
    progress: Callable[[str], None] = lambda text: None,
) -> Seen:
    """Has it answer some prompts, one at a time.

    Raises:
        ConfigError: it cannot be reached, or answers nothing that can be counted.
    """
    load = Load(num_prompts=num_prompts, num_warmup=1)
    record = await bench(endpoint, asking, load, client=client, progress=progress)
    state = await _state(endpoint, record.server)
    told = _most_telling(record.acceptance)
    counted = [(request.prompt_tokens, request.completion_tokens) for request in record.requests]
    halfway = [prompt + written / 2 for prompt, written in counted if prompt and written]
    context = fmean(halfway) if halfway else 0.0
    return _seen(record.server, state, list(_windows(record, told)), 1, told, _how(told), context)


def _windows(record: BenchRecord, told: Acceptance | None) -> Iterator[Window]:
    """One for each answer, by its decode speed at the client."""
    for request in record.requests:
        if request.error is None and request.tpot_s:
            length = request.accept_length or (told.accept_length if told else 1.0)
            cite = Cite(f"{record.server.url} {request.id}")
            tokens = (request.prompt_tokens or 0) + (request.completion_tokens or 0)
            yield Window(cite, 1, length, length * request.tpot_s, tokens or None, _drafts(told))


def _seen(
    facts: ServerFacts,
    state: Mapping[str, Any],
    windows: Sequence[Window],
    running: int,
    told: Acceptance | None,
    how: str,
    context: float = 0.0,
) -> Seen:
    """What was seen of it.

    Args:
        running: rows.
        told: acceptance, by one source.
        how: which source that is.
        context: tokens of all rows together; 0 where nobody knows.
    """
    cite = Cite(f"{facts.url}{STATE if facts.engine == 'outpace' else ''}")
    asked = {name: Value(value, cite) for name, value in _settings(facts)}
    asked |= {other: asked[name] for name, other in MEANT.items() if name in asked}
    run = Run(
        source=facts.url,
        kind="server",
        engine=facts.engine,
        asked=asked,
        running=running,
        windows=windows,
        by_running={running: windows},
        plain=our_server.plain_speed(state, running, context, cite),
        accepted=None if told is None or not _drafts(told) else Accepted(told.accept_length, how, told.plain_part),
        setup=our_server.setup(facts, state),
        per_position=told.by_position if told else (),
        per_position_cite=Cite(facts.url),
    )
    found = (*_acceptance(facts, told, how), *our_server.findings(facts, state, cite))
    return Seen(run=run, findings=found, not_known=tuple(_not_known(facts, told, run.setup)))


async def _state(endpoint: Endpoint, facts: ServerFacts) -> dict[str, Any]:
    return await endpoint.get_json(STATE) if facts.engine == "outpace" else {}


def _told(facts: ServerFacts, readings: Sequence[Metrics]) -> tuple[Acceptance | None, bool]:
    """While it was watched; where nothing ran then, since it was started, and whether it is that."""
    if len(readings) < 2:
        return None, False
    found = exposed.of_counters(readings[0], readings[-1]) or exposed.of_gauge(readings, facts.num_draft_tokens)
    return found or exposed.of_counters(Metrics({}), readings[-1]), found is None


def _drafts(told: Acceptance | None) -> bool:
    """It tells of cycles that drafted; ours counts plain steps as well."""
    return told is not None and told.plain_part < 1.0


def _how(told: Acceptance | None) -> str:
    """Where an accept length comes from, in words."""
    return "" if told is None else SOURCES[told.source]


def _most_telling(found: Sequence[Acceptance]) -> Acceptance | None:
    """The first is the most exact; positions are taken from whichever has them."""
    if not found:
        return None
    positions = next((each.by_position for each in found if each.by_position), ())
    return replace(found[0], by_position=positions)


def _running(reading: Metrics) -> float | None:
    return next((value for name in RUNNING if (value := reading.get(name))), None)


def _acceptance(facts: ServerFacts, told: Acceptance | None, how: str) -> Iterator[Finding]:
    if told is None or not _drafts(told):
        return
    rate = "" if told.acceptance_rate is None else f", {told.acceptance_rate:.0%} of the drafts accepted"
    plain = f" {told.plain_part:.0%} of its cycles were plain steps, which are left out." if told.plain_part else ""
    yield Finding(
        question="how well are drafts accepted",
        answer=f"accept length {told.accept_length:.2f}",
        text=f"A cycle that drafts emits {told.accept_length:.2f} tokens, the bonus token included{rate} ({how})."
        f"{plain}",
        confidence="low" if told.source == "gauge" else "high",
        evidence=[Cite(facts.url if told.source == "requests" else f"{facts.url}/metrics")],
        numbers={
            "accept_length": told.accept_length,
            "acceptance_rate": told.acceptance_rate,
            "plain_part": told.plain_part,
        },
    )


def _not_known(facts: ServerFacts, told: Acceptance | None, said: str) -> Iterator[Unknown]:
    """`said`: what the server says that it is set up to do."""
    if not facts.has_metrics:
        yield Unknown("what its counters say: it shows no metrics", "start it with metrics on (--enable-metrics)")
    if facts.engine == "vllm":
        yield Unknown("its settings: vLLM tells none over HTTP", "its log: outpace doctor LOG")
    if facts.engine == "unknown":
        yield Unknown("which engine it is and how it is set", "its log: outpace doctor LOG")
    if told is None and not said:
        yield Unknown("whether it speculates at all: nothing tells of drafts", "its log, or its start command")
    elif told is not None and _drafts(told) and not told.by_position:
        yield Unknown("acceptance by position, and so whether the wiring is right", "outpace doctor MODEL --drafter D")


def _settings(facts: ServerFacts) -> Iterator[tuple[str, Any]]:
    """Every setting under its own name. Ours has several of one name, such as control's k: the engine's comes last."""
    yield from _flat(facts.settings)
    yield from _flat(within(facts.settings, "engine"))


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
