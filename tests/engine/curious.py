"""Cycles that cannot be captured: they ask the host something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from outpace.speculation.chosen import Chosen
from outpace.speculation.cycle import Cycle


def asking_the_host(monkeypatch: pytest.MonkeyPatch, which: Callable[[Cycle], bool]) -> list[int]:
    """From now on the cycles that `which` says wait for what they chose; their k's are listed as they do."""
    asked: list[int] = []
    accept = Cycle.accept

    def curious(cycle: Cycle, allowed_BSW: Tensor | None = None) -> Chosen:
        chosen = accept(cycle, allowed_BSW)
        if which(cycle):
            asked.append(cycle.k)
            chosen.outcome_BC.sum().item()
        return chosen

    monkeypatch.setattr(Cycle, "accept", curious)
    return asked
