"""vLLM's lines: arguments, the engine's configuration, and its figures every ten seconds.

`Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 61.9 tokens/s, Running: 1 reqs, …` and
`SpecDecoding metrics: Mean acceptance length: 2.77, …, Per-position acceptance rate: 0.8, 0.5, …`. Versions differ in
which fields they print; before 2025 the second reads `Speculative metrics: Draft acceptance rate: 0.607, …`, and its
accept length is emitted tokens ÷ (drafted ÷ speculative tokens).
"""

from __future__ import annotations

import re

from outpace.lab.logs.literals import read_arguments
from outpace.lab.logs.records import Capture, EngineStats, Head, Ready, Record, Settings, SpecStats

_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
_STATS = re.compile(
    rf"(?:Engine (?P<engine>\d{{1,4}}): )?Avg prompt throughput: (?P<prompt>{_NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<rate>{_NUMBER}) tokens/s, Running: (?P<running>\d{{1,6}}) reqs,"
    r"(?: Swapped: \d{1,6} reqs,)? (?:Waiting|Pending): \d{1,6} reqs"
)
_SPEC = re.compile(r"(?:SpecDecoding|Speculative) metrics: ")
_LENGTH = re.compile(rf"Mean acceptance length: {_NUMBER}(?=,|$)")
_ACCEPTED = re.compile(r"(?:Accepted: (\d{1,12}) tokens|Number of accepted tokens: (\d{1,12})(?=[,.]|$))")
_DRAFTED = re.compile(r"(?:Drafted: (\d{1,12}) tokens|Number of draft tokens: (\d{1,12})(?=[,.]|$))")
_EMITTED = re.compile(r"Number of emitted tokens: (\d{1,12})(?=[,.]|$)")
_SPECULATIVE = re.compile(r"Number of speculative tokens: (\d{1,4})(?=[,.]|$)")
_POSITIONS = re.compile(r"Per-position acceptance rate: \[?((?:\d(?:\.\d{1,6})?(?:, )?){1,64})")
_AVERAGE = re.compile(rf"(?:Avg )?Draft acceptance rate: {_NUMBER}(%?)(?=,|$)", re.IGNORECASE)
_CONFIG = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v?[^()]{1,80}\) with config: ")
_CAPTURED = re.compile(r"Graph capturing finished in")

BEGINNINGS = (
    "Avg prompt throughput: ",
    "SpecDecoding metrics: ",
    "Speculative metrics: ",
    "non-default args: ",
    "LLM engine (",
    "Application startup complete",
    "Graph capturing finished",
)
"""What a line of ours contains."""


def read(head: Head, text: str) -> Record | None:
    """The record that a message is; None if it is cut short or none of ours."""
    if (stats := _STATS.search(text)) is not None:
        return _stats(head, stats)
    if (spec := _SPEC.search(text)) is not None:
        return _spec(head, text[spec.end() :])
    if "non-default args: " in text:
        return _arguments(head, text.partition("non-default args: ")[2])
    if (config := _CONFIG.search(text)) is not None:
        values = read_arguments(text[config.end() :].rstrip(", "))
        return None if not values else Settings(head=head, engine="vllm", values=values, resolved=True)
    if "Application startup complete" in text:
        return Ready(head=head)
    return Capture(head=head, what="graph") if _CAPTURED.search(text) else None


def _stats(head: Head, found: re.Match[str]) -> EngineStats:
    rank = f"Engine {found['engine']}" if found["engine"] else head.rank
    return EngineStats(
        head=Head(head.line, head.clock, rank),
        prompt_tok_s=float(found["prompt"]),
        tok_s=float(found["rate"]),
        running=int(found["running"]),
    )


def _spec(head: Head, text: str) -> SpecStats | None:
    """The acceptance rate stands in every version's line; where its value is whole, what stands before it is too."""
    average = _AVERAGE.search(text)
    if average is None:
        return None
    rate = float(average[1]) / (100.0 if average[2] else 1.0)
    positions = _POSITIONS.search(text)
    per_position = () if positions is None else tuple(float(part) for part in positions[1].split(", ") if part)
    if not 0.0 <= rate <= 1.0 or any(not 0.0 <= each <= 1.0 for each in per_position):
        return None
    return SpecStats(
        head=head,
        accept_length=_float(_LENGTH, text) or _length_by_counts(text),
        accepted=_int(_ACCEPTED, text),
        drafted=_int(_DRAFTED, text),
        per_position=per_position,
        acceptance_rate=rate,
    )


def _length_by_counts(text: str) -> float | None:
    """Of a line that tells tokens emitted and drafted, and how many a cycle drafts."""
    emitted, drafted, k = _int(_EMITTED, text), _int(_DRAFTED, text), _int(_SPECULATIVE, text)
    return emitted * k / drafted if emitted and drafted and k else None


def _arguments(head: Head, text: str) -> Settings | None:
    values = read_arguments(text[1:-1], ":") if text.startswith("{") and text.endswith("}") else None
    return None if not values else Settings(head=head, engine="vllm", values=values, resolved=False)


def _float(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return None if found is None else float(found[1])


def _int(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else int(next(filter(None, found.groups())))
