"""The least that a cycle can take, stage by stage and part by part. What is small and has no limit is left out.

Legend: B rows, k drafts, S = k+1 tokens a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outpace.lab.limits.parts import Least, drafter_parts, fusion_part, target_parts
from outpace.lab.limits.rates import Rates
from outpace.lab.limits.reads import Reads, drafter_reads, fusion_reads, target_reads
from outpace.models.arch import TargetConfig
from outpace.models.packed import Packing
from outpace.models.wiring import DrafterWiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of plain steps and cycles for one pair of models on one device, in seconds."""

    target: Reads
    drafter: Reads | None
    """One draft step."""
    fusion: Reads | None
    rates: Rates

    def plain(self, num_rows: int, context: int) -> float:
        """A plain step."""
        return self.target.seconds(num_rows, 1, context, self.rates)

    def verify(self, num_rows: int, k: int, context: int) -> float:
        """The target over k+1 tokens a row, without the fusion."""
        return self.target.seconds(num_rows, k + 1, context, self.rates)

    def draft(self, num_rows: int, k: int, context: int) -> float:
        """k draft steps, one after another."""
        return 0.0 if self.drafter is None else k * self.drafter.seconds(num_rows, 1, context, self.rates)

    def fuse(self, num_rows: int, k: int) -> float:
        """Features of k+1 tokens a row."""
        return 0.0 if self.fusion is None or not k else self.fusion.seconds(num_rows, k + 1, 0, self.rates)

    def cycle(self, num_rows: int, k: int, context: int) -> float:
        """A whole cycle; k = 0 is a plain step."""
        stages = (self.verify(num_rows, k, context), self.draft(num_rows, k, context), self.fuse(num_rows, k))
        return sum(stages)


def limits_of(
    config: TargetConfig,
    wiring: DrafterWiring | None,
    dtype: torch.dtype,
    rates: Rates,
    packing: Packing | None = None,
) -> Limits:
    """Limits of a target and, with `wiring`, its drafter.

    Args:
        dtype: of weights, keys and values.
        rates: of the device.
        packing: what of the target stays packed.
    """
    return Limits(
        target=target_reads(config, dtype.itemsize, packing),
        drafter=None if wiring is None else drafter_reads(wiring, dtype.itemsize),
        fusion=None if wiring is None else fusion_reads(wiring, dtype.itemsize),
        rates=rates,
    )


def cycle_parts(
    config: TargetConfig,
    wiring: DrafterWiring | None,
    itemsize: int,
    *,
    num_rows: int,
    k: int,
    context: int,
    packing: Packing | None = None,
) -> dict[str, dict[str, Least]]:
    """A cycle by phase and part; k = 0 is a plain step. Drafts are k steps, of which the first sees up to k+1 tokens a
    row; that changes no bytes."""
    parts = target_parts(config, itemsize, packing)
    verify = {name: part.least(num_rows, k + 1, context) for name, part in parts.items()}
    sampling = {"sampling": Least(itemsize * num_rows * (k + 1) * config.vocab_size)}
    if wiring is None or not k:
        return {"verify": verify, "accept": sampling}
    verify["fusion"] = fusion_part(wiring, itemsize).least(num_rows, k + 1, 0)
    steps = {name: part.least(num_rows, 1, context) for name, part in drafter_parts(wiring, itemsize).items()}
    steps["sampling"] = Least(itemsize * num_rows * wiring.draft_vocab_size)
    draft = {name: step.times(k) for name, step in steps.items()}
    return {"draft": draft, "verify": verify, "accept": sampling}
