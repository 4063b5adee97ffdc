"""Where a cycle's time goes: draft, verify, and the rest, measured from outside on an engine that runs eagerly.

A second engine over the same weights notes when the drafter starts, when the target starts and when its logits are
there (see `observe`); the timed comparisons never carry that. On a GPU each note waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from outpace import LLM, SamplingParams
from outpace.errors import EngineError
from outpace.lab.observe import observed

Note = tuple[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Medians over the cycles of one answer, in seconds."""

    draft_s: float
    verify_s: float
    cycle_s: float

    @property
    def rest_s(self) -> float:
        return self.cycle_s - self.draft_s - self.verify_s


def measure_phases(llm: LLM, prompt_ids: Sequence[int], params: SamplingParams) -> Phases:
    """Answers one prompt and takes the cycles apart. Without a drafter, draft is 0 and verify is the plain step.

    Raises:
        EngineError: the answer was too short to hold a whole cycle.
    """
    notes: list[Note] = []

    def note(name: str, logits: Tensor | None = None) -> None:
        notes.append((name, _now(llm.device)))

    for _ in observed(llm, note).stream(prompt_ids, params):
        note("token")
    cycles = _cycles(notes)
    if not cycles:
        raise EngineError("the answer was too short to time a cycle; ask for more tokens or use another prompt")
    draft, verify, whole = (median(column) for column in zip(*cycles, strict=True))
    return Phases(draft_s=draft, verify_s=verify, cycle_s=whole)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _cycles(notes: Sequence[Note]) -> list[tuple[float, float, float]]:
    """(draft, verify, whole) of each cycle between two tokens; the first token ends prefill, not a cycle."""
    bounds = [i for i, (name, _) in enumerate(notes) if name == "token"]
    cycles = []
    for begin, end in pairwise(bounds):
        inside = dict(reversed(notes[begin + 1 : end]))  # the first note of each name
        start, stop = notes[begin][1], notes[end][1]
        draft_s = inside["verify"] - inside["draft"] if "draft" in inside else 0.0
        cycles.append((draft_s, inside["logits"] - inside["verify"], stop - start))
    return cycles
