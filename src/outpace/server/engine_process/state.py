"""How an engine is at a moment: pages, the last decision, the break-even of the batch that runs, phases, graphs."""

from __future__ import annotations

from collections.abc import Collection

from outpace.engine.llm import LLM
from outpace.engine.sequence import Sequence
from outpace.server.wire import State
from outpace.speculation.control import AutomaticControl


def of(ask: int, llm: LLM) -> State:
    """The answer to question number `ask`.

    Args:
        llm: the engine.
    """
    control = llm.engine.control
    described = control.describe()
    k, break_even = (
        _break_even(control, llm.engine.scheduler.admitted) if isinstance(control, AutomaticControl) else (None, None)
    )
    return State(
        ask=ask,
        pages={
            "total": llm.engine.pages.num_usable,
            "free": llm.engine.pages.num_free,
            "cached": llm.engine.pages.num_cached,
        },
        k=int(described.get("k", 0)),
        why=str(described.get("why", "fixed")),
        break_even=break_even,
        break_even_k=k,
        control=described,
        graphs=llm.engine.runner.describe(),
        phases=llm.engine.phases.describe(),
        preempted=llm.engine.scheduler.num_preempted,
    )


def _break_even(control: AutomaticControl, batch: Collection[Sequence]) -> tuple[int | None, float | None]:
    """The k decided last or else the longest, and its cycle time ÷ plain step time; for one row if none runs."""
    k = control.decision.k or max(control.costs.ks)
    if not k:
        return None, None
    times = control.costs.by_k(max(1, len(batch)), sum(sequence.num_cached for sequence in batch))
    return k, round(times[k] / times[0], 4)
