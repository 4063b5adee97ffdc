"""Where time goes inside a forward on a CPU: models of the same weights, whose layers note their calls.

Layers run without hooks, for speed. So shallow copies of them are made whose children are wrapped, and take the place
of the engine's own for a while. A profiler that sees every operation would cost far more than it explains. Of several
ranks the first is watched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import Tensor

from outpace import LLM
from outpace.distributed.group import Group
from outpace.lab.profile.parts import ALL_REDUCE, ATTENTION, EXPERTS, FUSION, HEAD, LINEAR, NORMS, SMALL
from outpace.models.drafter import Drafter
from outpace.models.linear import Linear
from outpace.models.mixture import Mixture
from outpace.models.target import Layer, Target

Span = tuple[str, float, float]
"""A row's name, when it began and ended: `wall.Ran`, as little as can be made in the middle of a forward."""
SEPARATOR = "/"
"""Between phase and part in a row's name."""


class Spanned:
    """A module that notes when it is called; everything else is the module's own."""

    def __init__(self, inner: Any, label: str, rows: list[Span]) -> None:
        self._inner, self._label, self._rows = inner, label, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._noted(self._inner, self._label, *args, **options)

    def _noted(self, call: Any, label: str, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **options)
        self._rows.append((label, began, time.perf_counter()))
        return result


class SpannedNorm(Spanned):
    """A norm, alone or with the sum before it."""

    def add(self, x: Tensor, delta: Tensor | None) -> Any:
        return self._noted(self._inner.add, self._label, x, delta)


class SpannedGroup(Spanned):
    """What ranks do together, waiting for each other included."""

    def gather(self, part: Tensor) -> Any:
        return self._noted(self._inner.gather, self._label, part)


class SpannedModel(Spanned):
    """A target or a drafter, with the calls that are not its forward."""

    def __init__(self, inner: Any, phase: str, rows: list[Span]) -> None:
        super().__init__(inner, label(phase, SMALL), rows)
        self._phase = phase

    def logits(self, hidden: Tensor) -> Any:
        return self._noted(self._inner.logits, label(self._phase, HEAD), hidden)

    def fuse(self, features_BSF: Tensor) -> Any:
        return self._noted(self._inner.fuse, label("verify", FUSION), features_BSF)


def label(phase: str, part: str) -> str:
    """A row's name."""
    return f"{phase}{SEPARATOR}{part}"


@contextmanager
def watched(llm: LLM) -> Iterator[list[Span]]:
    """The list in which the calls of an engine's models are noted inside, in seconds."""
    rows: list[Span] = []
    target: Any = SpannedModel(_target(llm.target.model, rows), "verify", rows)
    drafter: Any = None if llm.drafter is None else SpannedModel(_drafter(llm.drafter, rows), "draft", rows)
    with llm.engine.runner.with_models(target, drafter):
        yield rows


def _target(model: Target, rows: list[Span]) -> Any:
    layers = [_layer(layer, rows) for layer in model.layers if isinstance(layer, Layer)]
    return _with(
        model,
        layers=layers,
        norm=SpannedNorm(model.norm, label("verify", NORMS), rows),
        lm_head=_with(model.lm_head, group=_group(model.lm_head.group, "verify", rows)),
    )


def _layer(layer: Layer, rows: list[Span]) -> Any:
    norms = {
        name: SpannedNorm(getattr(layer, name), label("verify", NORMS), rows) for name in ("input_norm", "mlp_norm")
    }
    mlp: Any = Spanned(layer.mlp, label("verify", LINEAR), rows)
    if isinstance(layer.mlp, Mixture):
        dense = {"router": Spanned(layer.mlp.router, label("verify", LINEAR), rows)}
        if layer.mlp.shared is not None:
            dense["shared"] = Spanned(layer.mlp.shared, label("verify", LINEAR), rows)
        mlp = Spanned(_with(layer.mlp, **dense), label("verify", EXPERTS), rows)
    group = _group(layer.group, "verify", rows)
    return _with(layer, **norms, group=group, attention=_attention(layer.attention, "verify", rows), mlp=mlp)


def _drafter(drafter: Drafter, rows: list[Span]) -> Any:
    names = ("embed_norm", "hidden_norm", "mlp_norm", "norm")
    return _with(
        drafter,
        **{name: SpannedNorm(getattr(drafter, name), label("draft", NORMS), rows) for name in names},
        attention=_attention(drafter.attention, "draft", rows),
        mlp=Spanned(drafter.mlp, label("draft", LINEAR), rows),
        group=_group(drafter.group, "draft", rows),
        lm_head=_with(drafter.lm_head, group=_group(drafter.lm_head.group, "draft", rows)),
    )


def _group(group: Group, phase: str, rows: list[Span]) -> Any:
    return SpannedGroup(group, label(phase, ALL_REDUCE), rows)


def _attention(attention: Any, phase: str, rows: list[Span]) -> Spanned:
    """Its products are linear layers."""
    products = {
        name: Spanned(child, label(phase, LINEAR), rows)
        for name, child in attention.named_children()
        if isinstance(child, Linear)
    }
    return Spanned(_with(attention, **products), label(phase, ATTENTION), rows)


def _with(module: Any, **children: Any) -> Any:
    """A shallow copy with other children, which Python finds before the module's own."""
    copied = copy(module)
    copied.__dict__.update(children)
    return copied
