"""Control that keeps batches under grammars apart from the others: both what they cost and what their drafts come to.

A cycle under a grammar waits for the host twice, for the tokens before it and for its masks, so it takes longer; and
the drafter, which knows nothing of grammars, drafts worse or better there. Mixed up, each would mislead the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.control import CycleSeen, Decision, Drafting
from outpace.speculation.cost import CostTable


class ApartControl(AutomaticControl):
    """Automatic control, and a second one that decides for batches in which some row is under a grammar.

    The second begins with the costs that the first has found when it is first needed.
    """

    def __init__(self, costs: CostTable, calibration: dict[str, Any] | None = None) -> None:
        super().__init__(costs, calibration)
        self.masked: AutomaticControl | None = None
        self._masked_last = False

    def _apart(self) -> AutomaticControl:
        if self.masked is None:
            self.masked = AutomaticControl(deepcopy(self.costs))
        return self.masked

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        self._masked_last = any(request.masked for request in batch)
        if self._masked_last:
            self.take_in()  # of the others in such batches, which may go on for ever
            return self._apart().choose(batch)
        return super().choose(batch)

    def fills_drafter(self) -> bool:
        """By the kind of batch that ran last: a prompt that comes in will be part of one like it."""
        return self._apart().fills_drafter() if self._masked_last else super().fills_drafter()

    def learn(self, request: Drafting, num_drafts: int, num_accepted: int) -> None:
        if request.masked:
            self._apart().learn(request, num_drafts, num_accepted)
        else:
            super().learn(request, num_drafts, num_accepted)

    def observe(self, seen: CycleSeen) -> None:
        if seen.masked:
            self._apart().observe(seen)
        else:
            super().observe(seen)

    def pay(self, num_rows: int, context: int, seconds: float) -> None:
        if self._masked_last:
            self._apart().pay(num_rows, context, seconds)
        else:
            super().pay(num_rows, context, seconds)

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        if self.masked is not None:
            described["under_grammars"] = self.masked.describe()
            if self._masked_last:
                described |= {name: described["under_grammars"][name] for name in ("k", "why", "weighed")}
        return described
