"""The result of one run as one typed value, which is what `--json` prints and what a report is made of.

Fields may be added under the same schema number; one that is renamed, removed or changes its meaning raises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.lab.bench.answer import Answer, Counted, Placed
from outpace.lab.bench.exposed import Acceptance
from outpace.lab.bench.figures import Figures
from outpace.lab.bench.server_facts import ServerFacts
from outpace.lab.bench.settings import Asking, Load

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One measured request. Times in seconds from the run's start; None where it failed before."""

    id: str
    set: str
    sent_s: float
    ttft_s: float | None
    latency_s: float | None
    tpot_s: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    num_chunks: int
    finish_reason: str | None
    accept_length: float | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """One server under one load."""

    schema: int
    started_at: str
    """UTC, ISO 8601."""
    server: ServerFacts
    asking: Asking
    load: Load
    num_warmup: int
    """Requests before, which are not in the figures."""
    usage_asked: dict[str, Any]
    """How the server was asked for token counts."""
    counted_by: Counted
    placed_by: Placed
    """How tokens are told apart within an answer: the server's running counts, or in proportion to characters."""
    figures: Figures
    acceptance: tuple[Acceptance, ...]
    """From each source that there was, the most exact first."""
    implied_cycle_s: float | None
    """Tokens a cycle ÷ decode tok/s, where one request ran at a time: what a cycle takes, all gaps included."""
    client_lag_p99_s: float
    """How late the client itself was."""
    notes: tuple[str, ...]
    """What limits the figures."""
    cut_short: bool = False
    """It was stopped before all requests were answered."""
    requests: tuple[Request, ...]
    client: dict[str, Any]
    """Fingerprint of the machine that asked."""


def request_of(answer: Answer, began_s: float) -> Request:
    """What is kept of an answer; its text is not."""
    told = answer.speculation
    return Request(
        id=answer.id,
        set=answer.set,
        sent_s=answer.sent_s - began_s,
        ttft_s=answer.ttft_s if answer.pieces else None,
        latency_s=answer.latency_s if answer.ok else None,
        tpot_s=answer.tpot_s if answer.ok else None,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        num_chunks=len(answer.pieces),
        finish_reason=answer.finish_reason,
        accept_length=told.accept_length if told is not None else None,
        error=answer.error,
    )
