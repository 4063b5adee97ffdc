"""What a server of ours says of itself: what it is set up to do, what control decided, what a plain step costs, graphs.

All of it is read from `/v1/outpace/state`; what is missing there is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outpace.lab.bench.server_facts import ServerFacts
from outpace.lab.doctor.finding import Cite, Figure, Finding


def plain_speed(state: Mapping[str, Any], running: int, context: float, cite: Cite) -> Figure | None:
    """Estimated from the cost table: a plain step of the smallest batch that holds so many rows.

    Args:
        state: the server's.
        running: rows.
        context: tokens of all rows together; 0 where nobody knows.
        cite: where the state was read.
    """
    control = within(state, "now", "control")
    rows = [row for row in control.get("costs") or [] if isinstance(row, Mapping) and row.get("k") == 0]
    fitting = sorted((row for row in rows if row.get("bucket", 0) >= running), key=lambda row: row["bucket"])
    base, slope = (fitting[0].get(name) for name in ("base_ms", "us_per_1k_context")) if fitting else (None, None)
    if not isinstance(base, int | float) or base <= 0:
        return None
    step_ms = base + (1e-6 * context * slope if isinstance(slope, int | float) else 0.0)
    speed = 1e3 * running / step_ms
    where = f"with {context:,.0f} tokens of context" if context else "without context"
    return Figure(speed, speed, speed, 1, "server", Cite(f"{cite.source}, a plain step {where}"), estimated=True)


def setup(facts: ServerFacts, state: Mapping[str, Any]) -> str:
    """What it would do with a request, and whether it has had one, as a sentence; empty where it does not say."""
    engine = within(facts.settings, "engine")
    if "drafter" not in facts.settings or "k" not in engine:
        return ""
    if facts.settings["drafter"] is None or not engine["k"]:
        return "It speculates with no drafter: whatever is asked is decoded plainly."
    name = facts.settings.get("drafter_source") or "that it was given"
    how = f"{engine['k']} drafts in every cycle"
    if engine.get("control") == "auto":
        how = f"up to {engine['k']} drafts a cycle, as many as its control finds to pay"
    text = f"It speculates with the drafter {name}, {how}"
    if not _has_served(state):
        text += ", but has served nothing since it was started"
    return f"{text}."


def findings(facts: ServerFacts, state: Mapping[str, Any], cite: Cite) -> Iterator[Finding]:
    """Whether it speculates at all and its answers count, what control decided last, and what is a graph."""
    if said := setup(facts, state):
        yield Finding(
            question="is it set up to speculate",
            answer="no" if "no drafter" in said else "yes" if _has_served(state) else "yes, but it has served nothing",
            text=said + ("" if _has_served(state) else f" To find out what that brings: {how_to_ask(facts)}."),
            confidence="high",
            evidence=[cite],
        )
    for mark in facts.marks:
        yield Finding(
            question="are its answers what they seem",
            answer="no",
            text=f"{mark[0].upper()}{mark[1:]}.",
            confidence="high",
            evidence=[cite],
        )
    now = within(state, "now")
    if "k" in now and _has_served(state):
        yield _decision(now, cite)
    yield from _graphs(facts, cite)


def how_to_ask(facts: ServerFacts) -> str:
    """The command that has it answer some prompts."""
    return f"outpace doctor {facts.url} --num-prompts 8"


def _has_served(state: Mapping[str, Any]) -> bool:
    """A server that does not count is not called idle."""
    return within(state, "totals").get("tokens") != 0


def _decision(now: Mapping[str, Any], cite: Cite) -> Finding:
    """What control chose last, and why, with the two figures that its words are about."""
    weighed = within(now, "weighed")
    return Finding(
        question="what does control do now",
        answer=f"k = {now['k']}" if now["k"] else "decodes plainly",
        text=f"Control decided on k = {now['k']}: {now.get('why', 'it does not say why')}."
        + (" Both figures are its own: expected from the drafts so far, and from its cost table." if weighed else ""),
        confidence="high",
        evidence=[cite],
        numbers={"k": now["k"], "weighed": weighed or None},
    )


def _graphs(facts: ServerFacts, cite: Cite) -> Iterator[Finding]:
    """What it captured, and why not."""
    graphs = facts.settings.get("graphs")
    if not isinstance(graphs, Mapping):
        return
    why = graphs.get("why_none")
    told = ", ".join(f"{name} {value}" for name, value in graphs.items() if isinstance(value, int | float | str))
    yield Finding(
        question="are cycles graphs",
        answer="no" if why else "yes",
        text=f"None is: {why}." if why else f"The server says: {told or 'every shape that was needed'}.",
        confidence="high",
        evidence=[cite],
    )


def within(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A part of nested objects; empty where it is missing, or something else."""
    for name in names:
        found = values.get(name)
        if not isinstance(found, Mapping):
            return {}
        values = found
    return values
