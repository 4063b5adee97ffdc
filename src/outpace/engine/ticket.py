"""A ticket: what one gets for a forward that was enqueued, to be exchanged for what it chose.

Shapes: B rows, S tokens a row, C = 1 + S, N alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.engine.marks import Marks
from outpace.kernels.logprobs import Tops
from outpace.speculation.chosen import Chosen
from outpace.types import CatchUpPlan, Outcome, Plan, PrefillPlan, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Ticket:
    """A forward in flight."""

    plan: Plan
    chosen: Chosen
    """On the host, once `done` has come."""
    done: torch.cuda.Event | None
    """None on a CPU, where it is done already."""
    before: torch.cuda.Event | None
    """The end of the forward before, if that was in flight when this one was enqueued."""
    on_cpu_s: float | None
    """How long it took, on a CPU."""
    began: float
    """When the host began with it, by `time.perf_counter`: what runs alone takes from then to `read`."""
    marks: Marks | None
    """When its phases ended, where they are timed."""

    def read(self) -> Outcome:
        """Waits for the forward."""
        if self.done is not None:
            self.done.synchronize()
        plan, chosen = self.plan, self.chosen
        rows = chosen.outcome_BC.tolist()[: len(plan.rows)]
        tokens = tuple(tuple(row[1 : 1 + row[0]]) for row in rows)
        touched = None if chosen.touched is None else int(chosen.touched)
        if chosen.tops is None and chosen.prompt_tops is None:
            return Outcome(tokens, touched=touched)
        assert not isinstance(plan, CatchUpPlan)
        lines = ((place, place, len(tokens[place]), num) for place, num in plan.logprobs)
        found = {} if chosen.tops is None else _listed(chosen.tops, lines)
        return Outcome(tokens, found, self._of_prompts(), touched)

    def _of_prompts(self) -> dict[int, tuple[TokenLogprobs, ...]]:
        tops = self.chosen.prompt_tops
        if tops is None:
            return {}
        assert isinstance(self.plan, PrefillPlan) and self.plan.prompt is not None
        prompt = self.plan.prompt
        asked = zip(prompt.places, prompt.following, prompt.nums, strict=True)
        return _listed(tops, ((place, a, len(behind), num) for a, (place, behind, num) in enumerate(asked)))

    def seconds(self) -> float | None:
        """From the end of the forward before, after `read`; None if the device may have stood idle between."""
        if self.done is None:
            return self.on_cpu_s
        return None if self.before is None else self.before.elapsed_time(self.done) / 1e3

    def phases(self) -> dict[str, float] | None:
        """Seconds by phase, after `read` and before the next cycle is enqueued; None where they are not timed."""
        return None if self.marks is None else self.marks.seconds()


def on_host(chosen: Chosen) -> Chosen:
    """A copy on the host; from a GPU it is on its way until what was enqueued has run."""
    tops, prompt_tops = chosen.tops, chosen.prompt_tops
    return Chosen(
        _copied(chosen.outcome_BC),
        None if tops is None else tops.map(_copied),
        None if prompt_tops is None else prompt_tops.map(_copied),
        None if chosen.touched is None else _copied(chosen.touched),
    )


def _copied(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def _listed(tops: Tops, lines: Iterable[tuple[int, int, int, int]]) -> dict[int, tuple[TokenLogprobs, ...]]:
    """Log-probabilities of rows that want them; lines are (place in the plan, line in `tops`, tokens, alternatives)."""
    found = {}
    for place, line, count, num in lines:
        own = tops.own_BS[line, :count].tolist()
        ids = tops.ids_BSN[line, :count, :num].tolist()
        values = tops.values_BSN[line, :count, :num].tolist()
        found[place] = tuple(
            TokenLogprobs(logprob, tuple(zip(top_ids, top_values, strict=True)))
            for logprob, top_ids, top_values in zip(own, ids, values, strict=True)
        )
    return found
