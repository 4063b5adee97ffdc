"""A rehearsal runs one of several layers that launch the same kernels, and every one that launches others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.tiny import tiny_config
from outpace.models.arch import MixtureConfig
from outpace.models.target import Layer, Target
from outpace.training.teacher import causal_attend

MIXED = MixtureConfig(
    num_experts=4,
    num_chosen=2,
    intermediate_size=8,
    normalizes=True,
    layers=(False, False, False, True, True, True, False, True),
)


def layers_run(monkeypatch: pytest.MonkeyPatch, model: Target, *, rehearsing: bool) -> list[int]:
    ran: list[int] = []
    forward = Layer.__call__

    def noted(layer: Layer, x: Any, delta: Any, rotary: Any, attend: Any, index: int, reuse: int) -> Any:
        ran.append(index)
        return forward(layer, x, delta, rotary, attend, index, reuse)

    monkeypatch.setattr(Layer, "__call__", noted)
    model.rehearsing = rehearsing
    ids = torch.zeros((1, 2), dtype=torch.int64)
    taps = (0, 2, model.config.num_layers)
    hidden, features = model(ids, torch.arange(2)[None], causal_attend(model.config.windows), taps)
    assert hidden.shape == (1, 2, model.config.hidden_size)
    assert features is not None and features.shape == (1, 2, 3 * model.config.hidden_size)
    touched = model.experts_touched()
    assert (touched is None) == (model.config.mixture is None)
    return ran


@pytest.mark.parametrize(
    ("changes", "telling"),
    [
        ({}, [0, 1]),  # the first layer's norm has nothing to add
        ({"windows": (4, 4, None, 4, None, None, 4, 4)}, [0, 1, 2, 3]),
        ({"architecture": "qwen3_moe", "mixture": MIXED}, [0, 1, 3, 4]),
    ],
)
def test_one_of_like_layers_runs(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], telling: list[int]) -> None:
    windows = {"windows": (None,) * 8} | changes
    model = Target(tiny_config(num_layers=8, **windows))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    assert layers_run(monkeypatch, model, rehearsing=True) == telling
    assert layers_run(monkeypatch, model, rehearsing=False) == list(range(8))
