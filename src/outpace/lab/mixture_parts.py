"""Where a forward of a mixture of experts goes: each part of its layers by itself, and every kernel by name.

A part is run for all layers one after another, so that its weights come from memory as they do in a forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outpace.kernels.attention import PagedAttend
from outpace.lab.mixture_rank import Drawn
from outpace.models.latent import LatentAttention
from outpace.models.layers import GatedMLP, Linear

Run = Callable[[], object]
MAX_KERNELS = 24


def parts_of(
    drawn: Drawn, attend: Callable[[], PagedAttend] | None, num_tokens: int, positions_BS: Tensor | None = None
) -> dict[str, Run]:
    """The parts by name; without `attend`, the experts alone."""
    model, hidden = drawn.model, drawn.model.config.hidden_size
    x_BSH = torch.randn((1, num_tokens, hidden), device=model.embed.weight.device).to(model.embed.weight.dtype)
    parts: dict[str, Run] = {"experts": _experts(drawn, x_BSH[0])}
    if attend is None or positions_BS is None:
        return parts
    layers: list[Any] = list(model.layers)
    attentions: list[LatentAttention] = [layer.attention for layer in layers]
    dense = [layer.mlp for layer in layers if isinstance(layer.mlp, GatedMLP)]
    shared = [mixture.shared for mixture in drawn.mixtures if mixture.shared is not None]
    on_gpu = x_BSH.is_cuda
    rotary = model.rotary(positions_BS, x_BSH.dtype)
    attending = attend()

    def attention() -> None:
        for index, block in enumerate(attentions):
            block(x_BSH, rotary, attending, index)

    def routers() -> None:
        for mixture in drawn.mixtures:
            if on_gpu:
                mixture.route(x_BSH[0])
            else:
                mixture.choose(x_BSH[0])

    def norms() -> None:
        for layer in layers:
            layer.input_norm.add(x_BSH, x_BSH)
            layer.mlp_norm.add(x_BSH, x_BSH)

    parts |= {"attention": attention, "routers": routers, "norms": norms}
    parts["attention: query, latent and output products"] = _each(
        [product for block in attentions for product in (block.down, block.q_up, block.output)], x_BSH
    )
    parts["shared experts"] = _each(shared, x_BSH)
    parts["dense layers"] = _each(dense, x_BSH)
    parts["head"] = lambda: model.logits(x_BSH).argmax(-1)
    return parts


def _experts(drawn: Drawn, x_TH: Tensor) -> Run:
    """All layers' routed experts, with grouping; the reference where there is no GPU."""
    T, C = len(x_TH), drawn.experts_LTC.shape[2]
    scores_TC = torch.full((T, C), 1.0 / C, device=x_TH.device)

    def by_kernels() -> None:
        from outpace.kernels.gpu.experts import mixture_packed

        for mixture, experts_TC in zip(drawn.mixtures, drawn.experts_LTC, strict=True):
            assert mixture.packed is not None
            mixture_packed(x_TH, experts_TC[:T], scores_TC, mixture.packed.gate_up, mixture.packed.down)

    def plainly() -> None:
        for mixture, experts_TC in zip(drawn.mixtures, drawn.experts_LTC, strict=True):
            for expert in experts_TC[:T].unique().tolist():
                mixture.expert(expert)

    return by_kernels if x_TH.is_cuda else plainly


def _each(modules: list[Any], x_BSH: Tensor) -> Run:
    """Each module over tokens of its own width."""
    found: list[nn.Module] = [module for module in modules if module is not None]
    widths = {module.in_features for module in found if isinstance(module, Linear)}
    inputs = {width: x_BSH.new_ones((*x_BSH.shape[:2], width)) for width in widths}

    def run() -> None:
        for module in found:
            module(inputs[module.in_features] if isinstance(module, Linear) else x_BSH)

    return run


def time_by_kernel(run: Run, device: torch.device) -> dict[str, Any] | str:
    """Microseconds and launches of one eager forward by kernel, the longest first; or why there is nothing to tell.

    Launched one by one, kernels do not overlap; in a graph they do, and are faster together than this sum.
    """
    if device.type != "cuda":
        return "no GPU"
    try:
        run()
        torch.cuda.synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize(device)
        events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    except (RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    events.sort(key=lambda event: -event.self_device_time_total)
    shown = {
        event.key[:60]: {"us": round(event.self_device_time_total, 1), "launches": event.count}
        for event in events[:MAX_KERNELS]
    }
    rest = sum(event.self_device_time_total for event in events[MAX_KERNELS:])
    return shown | {"others": {"us": round(rest, 1), "launches": sum(e.count for e in events[MAX_KERNELS:])}}
