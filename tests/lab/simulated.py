"""Comparisons of machines that do not exist: known speeds under noise, drift and outliers, on seeded random numbers."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from outpace.lab.paired.blocks import Block, Role, Run, measure_block


@dataclass
class Machine:
    """Shares of speed, as standard deviations of logarithms unless said otherwise."""

    seed: int
    true_ratio: float = 1.0
    noise: float = 0.01
    drift: float = -0.15
    """From the first run to the last, steadily."""
    wander: float = 0.002
    """A step of a random walk, a run."""
    outliers: float = 0.02
    """Chance that a run is disturbed: it takes up to half as long again."""
    bias: float = 0.0
    """Of whatever is asked as A', which a sound measurement has not."""

    def blocks(self, num: int) -> list[Block]:
        draw = np.random.default_rng(self.seed)
        state = {"step": 0, "walk": 0.0}

        async def measure(role: Role) -> Run:
            state["step"] += 1
            state["walk"] += draw.normal(0.0, self.wander)
            log = self.drift * state["step"] / (6 * num) + state["walk"] + draw.normal(0.0, self.noise)
            if draw.random() < self.outliers:
                log -= math.log1p(draw.uniform(0.05, 0.5))
            log += math.log(self.true_ratio) if role == "B" else self.bias if role == "A'" else 0.0
            return Run(role=role, tok_s=100.0 * math.exp(log))

        return [_finished(measure_block(index, measure)) for index in range(num)]


def _finished(work: Coroutine[Any, Any, Block]) -> Block:
    """What a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        block: Block = end.value
        return block
    raise AssertionError("it waits for something")
