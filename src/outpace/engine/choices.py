"""What computes what on this device, and how the devices speak to each other: choices that change speed, as data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from outpace.models.drafter import Drafter
from outpace.models.linear import Linear
from outpace.models.mixture import Mixture
from outpace.models.target import Target


def kernels(target: Target, drafter: Drafter | None) -> dict[str, str]:
    """Who computes what, in words, as plain data for JSON."""
    on_gpu = target.embed.weight.is_cuda
    rest = "Triton" if on_gpu else "PyTorch"
    used = {
        "products": _products(target, drafter),
        "attention": _attention(target, on_gpu),
        "norms_and_rope": rest,
        "sampling": rest,
        "accept": rest,
        "kv_write": rest,
    }
    if (mixture := _mixture(target, on_gpu)) is not None:
        used["experts"] = mixture
    return used


def parallel() -> dict[str, Any]:
    """A model that lies on one device, in the form of `Ranks.describe`."""
    return {
        "size": 1,
        "backend": None,
        "sums": "none: the model lies on one device",
        "gathering": {},
        "nccl_asked": None,
        "ranks": [],
    }


def _products(target: Target, drafter: Drafter | None) -> str:
    if target.embed.weight.is_cuda:
        products = _linears(target)
        held = [product.held.name for product in products if product.held is not None]
        named = f"; {len(held)} of {len(products)} in {held[0]}, unpacked in registers or before cuBLAS" if held else ""
        return f"Triton for few rows of tokens, cuBLAS beyond{named}"
    models: list[nn.Module] = [target] if drafter is None else [target, drafter]
    prepacked = [product.prepacked is not None for product in _linears(*models)]
    name = str(target.embed.weight.dtype).removeprefix("torch.")
    if all(prepacked):
        return f"oneDNN in {name}, weights in its own layout"
    how = f"{sum(prepacked)} of {len(prepacked)} weights packed"
    if not torch._C._has_mkldnn:
        how = "no oneDNN in this PyTorch"
    return f"PyTorch in {name}: {how}, which this processor has no instructions for"


def _linears(*models: nn.Module) -> list[Linear]:
    return [module for model in models for module in model.modules() if isinstance(module, Linear)]


def _attention(target: Target, on_gpu: bool) -> str:
    kind = "latent" if target.config.latent is not None else "grouped"
    return f"{kind}: Triton over the pages in place" if on_gpu else f"{kind}: PyTorch over gathered pages"


def _mixture(target: Target, on_gpu: bool) -> str | None:
    found = next((module for module in target.modules() if isinstance(module, Mixture)), None)
    if found is None:
        return None
    held = "" if found.packed is None else f"{found.packed.down.name}, packed in memory: "
    if not on_gpu:
        return f"{held}PyTorch, expert by expert: no GPU"
    few = "" if target.embed.weight.dtype == torch.float32 else "each chosen expert read once for few tokens, "
    why = "" if found.why_not_routed is None else f"; routed by PyTorch: {found.why_not_routed}"
    return f"{held}Triton, {few}in tiles of one expert's tokens for many{why}"
