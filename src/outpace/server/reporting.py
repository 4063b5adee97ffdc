"""A log line every few seconds while something runs: how fast, how well drafts are accepted, what waits."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import Any

from outpace.server.client import EngineClient
from outpace.server.logs import tell
from outpace.server.totals import Totals
from outpace.server.wire import State

DOUBT_AFTER = 200
"""First drafts, after which so few accepted ones are no chance."""
DOUBT_BELOW = 0.03


async def report(client: EngineClient, interval: float) -> None:
    """Writes lines until cancelled."""
    before, since = replace(client.desk.totals), monotonic()
    doubted = False
    while True:
        await asyncio.sleep(interval)
        now, at = replace(client.desk.totals), monotonic()
        if not doubted and (doubt := wiring_doubt(now)) is not None:
            tell("drafter hardly ever right", doubt, logging.WARNING)
            doubted = True
        if now != before or client.desk.num_running:
            tell("speed", line(client, before, now, at - since, await client.state()))
        before, since = now, at


def line(client: EngineClient, before: Totals, now: Totals, seconds: float, state: State | None) -> dict[str, Any]:
    """What one line says of the time between two counts; null is what an engine that does not answer would know."""
    cycles = now.cycles - before.cycles
    facts: dict[str, Any] = {
        "tok_s": round((now.tokens - before.tokens) / seconds, 2),
        "accept_length": round((now.emitted - before.emitted) / cycles, 3) if cycles else None,
        "running": client.desk.num_running,
        "waiting": client.desk.num_waiting,
    }
    facts |= {name: getattr(state, name, None) for name in ("k", "why", "break_even", "pages")}
    return facts | {"graph_hit_rate": None if state is None else _graph_hit_rate(state.graphs)}


def wiring_doubt(totals: Totals) -> dict[str, Any] | None:
    """What to say of a drafter whose very first drafts are refused: a weak one gets more of them right than that."""
    if totals.first_drafted < DOUBT_AFTER or totals.first_accepted >= DOUBT_BELOW * totals.first_drafted:
        return None
    return {
        "first_drafts": totals.first_drafted,
        "accepted": totals.first_accepted,
        "likely": "the drafter is wired wrongly (layers that it taps, d2t, norm) or belongs to another model",
        "remedy": "see drafter in /v1/outpace/state for what was decided; try --aux-boundaries",
    }


def _graph_hit_rate(graphs: dict[str, Any]) -> float | None:
    """Part of all cycles that were a graph's replay; None where there are no graphs."""
    replays: int = graphs.get("replays", 0)
    return round(1.0 - graphs["eager_replays"] / replays, 4) if replays else None
