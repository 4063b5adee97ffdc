"""Looking inside an engine without touching it: a second engine over the same weights, whose models report their calls.

Models run their layers without hooks, for speed. So the lab wraps the two models and hands the wrapped ones to an
engine of its own; the engine that is timed never carries any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from outpace import LLM

OnCall = Callable[[str, Tensor | None], None]
"""Told "draft" and "verify" when the drafter and the target begin a forward, and "logits", with the target's logits."""


class Observed:
    """A model that reports; everything else is the model's own."""

    def __init__(self, model: Any, begins: str, on_call: OnCall, *, heads: bool = False) -> None:
        self._model = model
        self._begins = begins
        self._on_call = on_call
        self._heads = heads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._on_call(self._begins, None)
        return self._model(*args, **options)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._model.logits(hidden)
        if self._heads:
            self._on_call("logits", logits)
        return logits


def observed(llm: LLM, on_call: OnCall) -> LLM:
    """An engine like `llm`, with pages of its own, that reports every forward of its requests, one at a time.

    It is eager, since a graph's replay calls nobody, and drafts `config.k` in every cycle, so that no forward is
    measured before the first request.
    """
    model: Any = Observed(llm.target.model, "verify", on_call, heads=True)
    drafter: Any = None if llm.drafter is None else Observed(llm.drafter, "draft", on_call)
    config = replace(llm.config, eager=True, control="fixed")
    return LLM.from_parts(replace(llm.target, model=model), drafter, config)
