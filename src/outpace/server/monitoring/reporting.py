"""A log line every few seconds while something runs: how fast, how well drafts are accepted, what waits."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import Any

from outpace.server.engine_client.client import EngineClient
from outpace.server.engine_client.totals import Totals
from outpace.server.monitoring.logs import tell
from outpace.server.wire import State
from outpace.types import accept_length

DOUBT_AFTER = 200
"""First drafts, after which so few accepted ones are no chance."""
DOUBT_BELOW = 0.03


async def report(client: EngineClient, interval: float) -> None:
    """Writes lines until cancelled."""
    before, since = replace(client.desk.totals), monotonic()
    doubted, graphs = False, dict[str, Any]()
    while True:
        await asyncio.sleep(interval)
        now, at = replace(client.desk.totals), monotonic()
        if not doubted and (doubt := wiring_doubt(now)) is not None:
            tell("drafter hardly ever right", doubt, logging.WARNING)
            doubted = True
        if now != before or client.desk.num_running:
            state = await client.state()
            rate = None
            if state is not None:
                rate, graphs = graph_hit_rate(graphs, state.graphs), state.graphs
            tell("speed", line(client, before, now, at - since, state) | {"graph_hit_rate": rate})
        before, since = now, at


def line(client: EngineClient, before: Totals, now: Totals, seconds: float, state: State | None) -> dict[str, Any]:
    """What one line says of the time between two counts; null is what an engine that does not answer would know."""
    cycles, emitted = now.cycles - before.cycles, now.emitted - before.emitted
    length = accept_length(cycles, emitted, (sum(now.drafted_at[:1]) - sum(before.drafted_at[:1]),))
    facts: dict[str, Any] = {
        "tok_s": round((now.tokens - before.tokens) / seconds, 2),
        "accept_length": None if length is None else round(length, 3),
        "running": client.desk.num_running,
        "waiting": client.desk.num_waiting,
    }
    return facts | {name: getattr(state, name, None) for name in ("k", "why", "weighed", "pages")}


def wiring_doubt(totals: Totals) -> dict[str, Any] | None:
    """What to say of a drafter whose very first drafts are refused: a weak one gets more of them right than that."""
    drafted, accepted = sum(totals.drafted_at[:1]), sum(totals.accepted_at[:1])
    if drafted < DOUBT_AFTER or accepted >= DOUBT_BELOW * drafted:
        return None
    return {
        "first_drafts": drafted,
        "accepted": accepted,
        "likely": "the drafter is wired wrongly (layers that it taps, d2t, norm) or belongs to another model",
        "remedy": "see drafter in /v1/outpace/state for what was decided; try --aux-boundaries",
    }


def graph_hit_rate(before: dict[str, Any], now: dict[str, Any]) -> float | None:
    """Part of the cycles between two looks that were a graph's replay; None without cycles or without graphs.

    Args:
        before: what the runner said; that of another process, or nothing, counts as a start.
        now: what it says.
    """
    ran, eager = (now.get(name, 0) - before.get(name, 0) for name in ("replays", "eager_replays"))
    if ran < 0 or eager < 0:
        return graph_hit_rate({}, now)
    return round(1.0 - eager / ran, 4) if ran else None
