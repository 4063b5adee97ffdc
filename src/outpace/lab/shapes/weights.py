"""Bytes of weights as they lie in memory, in whatever layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from outpace.models.linear import Linear


def num_bytes_of(modules: Sequence[nn.Module]) -> int:
    """Of all that a forward of these modules reads, but for routed experts that stay packed."""
    tensors: list[Tensor] = [parameter for module in modules for parameter in module.parameters()]
    held = 0
    for linear in (inner for module in modules for inner in module.modules() if isinstance(inner, Linear)):
        held += 0 if linear.held is None else linear.held.num_bytes
        if linear.prepacked is not None:
            tensors.append(linear.prepacked)
    return held + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
