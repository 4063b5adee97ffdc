"""Running sums of a training run, kept on the device and read only when a line is logged.

`accept_length` is what greedy drafting would reach at k drafts if every position began a cycle: one, plus the share of
positions whose first draft agrees with the target, plus the share whose first two do, and so on. Real drafting begins
cycles where the last one ended, so its figure differs a little; `validate` measures that one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outpace.training.ttt import Tested

_SHOWN_K = 4


class Meter:
    """Sums `Tested` values between two log lines."""

    def __init__(self, device: torch.device, num_steps: int) -> None:
        self.device, self.num_steps = device, num_steps
        self._clear()

    def _clear(self) -> None:
        self.losses: list[Tensor] = []
        self.sums = torch.zeros(5, self.num_steps, device=self.device)
        self.num_tokens = 0
        self.began = time.monotonic()

    def add(self, tested: Tested, num_tokens: int) -> None:
        """One batch of `num_tokens` tokens, padding not counted."""
        self.losses.append(tested.loss.detach())
        self.num_tokens += num_tokens
        self.sums += _columns(tested)

    def read(self) -> dict[str, Any]:
        """The means since the last call, and tokens a second; waits for the device."""
        record = _record(torch.stack(self.losses).mean(), self.sums)
        record["tokens_per_second"] = self.num_tokens / (time.monotonic() - self.began)
        self._clear()
        return record


def summarize(tests: Sequence[Tested]) -> dict[str, Any]:
    """The means over some batches."""
    return _record(torch.stack([t.loss for t in tests]).mean(), torch.stack([_columns(t) for t in tests]).sum(0))


def _columns(tested: Tested) -> Tensor:
    entropy = tested.cross_entropy * tested.num_judged
    return torch.stack((entropy, tested.num_judged, tested.num_agreeing, tested.num_chained, tested.sum_accepted))


def _record(loss: Tensor, sums: Tensor) -> dict[str, Any]:
    entropy, judged, agreeing, chained, accepted = sums.double().cpu()
    count = judged.clamp(min=1)
    return {
        "loss": float(loss),
        "cross_entropy": _rounded(entropy / count),
        "agreement": _rounded(agreeing / count),
        "expected_acceptance": _rounded(accepted / count),
        "accept_length": 1.0 + float((chained[:_SHOWN_K] / count[0]).sum()),
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 4) for value in values]
