"""How an engine is at a moment: pages, the last decision and what it weighed, phases, graphs."""

from __future__ import annotations

from outpace.engine.llm import LLM
from outpace.server.wire import State


def of(ask: int, llm: LLM) -> State:
    """The answer to question number `ask`.

    Args:
        llm: the engine.
    """
    described = llm.engine.control.describe()
    return State(
        ask=ask,
        pages={
            "total": llm.engine.pages.num_usable,
            "free": llm.engine.pages.num_free,
            "cached": llm.engine.pages.num_cached,
        },
        k=int(described.get("k", 0)),
        why=str(described.get("why", "fixed")),
        weighed=described.get("weighed"),
        control=described,
        graphs=llm.engine.runner.describe(),
        phases=llm.engine.phases.describe(),
        preempted=llm.engine.scheduler.num_preempted,
    )
