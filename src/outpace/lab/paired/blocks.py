"""What is measured in a comparison: blocks, each of which asks A, B and A once more, forwards and backwards.

A block's order is A B A' A' B A, and the next blocks begin with B and with A', so that no contender has a place of its
own. Each contender's two runs lie around the same middle, so a steady drift (a clock that
falls, a machine that warms up) slows all three alike and leaves their ratios as they are; A B and then A B again would
not. A' is A's server under another name: its ratio to A is the control, and must be 1.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from outpace.lab.paired.guard import State, throttled
from outpace.lab.timing.samples import mirrored

Role = Literal["A", "B", "A'"]
ROLES: tuple[Role, ...] = ("A", "B", "A'")
RUNS = 2
"""Of each role in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement of one contender."""

    role: Role
    tok_s: float
    """The measured speed; 0 where it failed."""
    tokens: int = 0
    seconds: float = 0.0
    accept_length: float | None = None
    digest: str = ""
    """Of the answers' texts: equal ones have been answered equally."""
    num_undercounted: int = 0
    """Answers that came in more pieces than their server counts tokens."""
    errors: tuple[str, ...] = ()
    state: State = field(default_factory=State)
    """Of this machine, just after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The same prompts, asked of all."""

    index: int
    runs: tuple[Run, ...]
    excluded: str | None = None
    """Why it does not count."""

    def log_ratio(self, role: Role) -> float:
        """Logarithm of a role's speed over A's, each the geometric mean of its runs."""
        return self._mean_log(role) - self._mean_log("A")

    def digests(self, roles: Sequence[Role]) -> set[str]:
        """Of what these roles answered."""
        return {run.digest for run in self.runs if run.role in roles}

    def _mean_log(self, role: Role) -> float:
        return fmean(math.log(run.tok_s) for run in self.runs if run.role == role)


async def measure_block(index: int, measure: Callable[[Role], Awaitable[Run]]) -> Block:
    """One block, in its order."""
    shift = index % len(ROLES)
    order = ROLES[shift:] + ROLES[:shift]
    runs = [await measure(order[place]) for place in mirrored(len(ROLES), RUNS)]
    failed = [error for run in runs for error in run.errors]
    stopped = [run.role for run in runs if not run.tok_s > 0]
    reason = f"a request failed: {failed[0]}" if failed else f"no speed of {stopped[0]}" if stopped else None
    reason = reason or throttled([run.state for run in runs])
    return Block(index=index, runs=tuple(runs), excluded=reason)


def counted(blocks: Sequence[Block]) -> list[Block]:
    """Those that count."""
    return [block for block in blocks if block.excluded is None]
