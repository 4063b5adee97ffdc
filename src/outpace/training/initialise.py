"""Where a fresh drafter starts: from the target's own weights, wherever shapes allow.

The draft head begins as the target's rows for the draft ids, so that rare tokens have a sensible place before they are
ever seen; the one layer begins as the target's last one, which already reads the residual stream that the taps come
from; the fusion passes the deepest tap on. Ten million tokens are few for a drafter that starts from noise. (Seen on
smollm2 after 24 steps: held-out cross-entropy 10% lower than from noise; without the identity in the fusion, 7%
higher.)

Legend: H hidden (the target's and the drafter's), A taps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.drafter import Drafter
from outpace.models.layers import Attention, GatedMLP
from outpace.models.target import Layer, Target

_DOUBT = 0.5
"""Scale of the final norm against the target's: a drafter that knows nothing yet should not be sure of anything."""


@torch.no_grad()
def start_from_target(drafter: Drafter, target: Target) -> None:
    """Overwrites those weights of a fresh drafter that have a counterpart of the same shape in its target."""
    last = target.layers[-1]
    assert isinstance(last, Layer)
    if drafter.wiring.lm_head == "own":
        _copy(drafter.lm_head.weight, target.lm_head.weight[drafter.target_ids_V])
    if _copy(drafter.norm.weight, target.norm.weight):
        drafter.norm.weight.mul_(_DOUBT)
    if drafter.fc is not None:
        _pass_deepest_tap(drafter.fc.weight)
    _copy_layer(drafter, last)


def _pass_deepest_tap(weight: Tensor) -> None:
    """fc [H, A·H]: the identity, added under the last tap."""
    H = weight.shape[0]
    weight[:, -H:] += torch.eye(H, dtype=weight.dtype, device=weight.device)


def _copy_layer(drafter: Drafter, last: Layer) -> None:
    """The layer reads [embedding, hidden]; only the half that reads the hidden state has a counterpart.

    Latent attention and a mixture of experts have none.
    """
    _copy(drafter.hidden_norm.weight, last.input_norm.weight)
    if isinstance(last.attention, Attention) and isinstance(drafter.attention, Attention):
        _copy(drafter.attention.qkv.weight[:, -last.attention.qkv.in_features :], last.attention.qkv.weight)
        _copy(drafter.attention.output.weight, last.attention.output.weight)
    if isinstance(last.mlp, GatedMLP) and _copy(drafter.mlp.gate_up.weight, last.mlp.gate_up.weight):
        _copy(drafter.mlp.down.weight, last.mlp.down.weight)
        _copy(drafter.mlp_norm.weight, last.mlp_norm.weight)


def _copy(to: Tensor, source: Tensor) -> bool:
    if to.shape != source.shape:
        return False
    to.copy_(source)
    return True
