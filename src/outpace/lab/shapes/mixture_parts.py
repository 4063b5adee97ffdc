"""Where a forward of a mixture of experts goes: each part of its layers by itself, and every kernel by name.

A part is run for all layers one after another, so that its weights come from memory as they do in a forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outpace.kernels.attention import PagedAttend
from outpace.lab.shapes.drawn import Drawn
from outpace.lab.shapes.weights import num_bytes_of
from outpace.models.latent import LatentAttention
from outpace.models.layers import GatedMLP
from outpace.models.linear import Linear

Run = Callable[[], object]
MAX_KERNELS = 24


@dataclass(frozen=True, slots=True)
class Part:
    """All layers' calls of one part of a forward."""

    run: Run
    num_bytes: int = 0
    """Of the weights that it reads, those of routed experts left out."""
    stacks: bool = True
    """Whether it is no part of another."""
    prepare: Run = lambda: None
    """What it needs done when experts were drawn anew, and is not its own work."""


def experts_of(drawn: Drawn, num_tokens: int) -> Part:
    """The routed experts, once it is known who goes through which; the reference where there is no GPU."""
    x_TH, layers = _states(drawn, num_tokens)[0], list(zip(drawn.mixtures, drawn.experts_LTC, strict=True))
    T, C = num_tokens, drawn.experts_LTC.shape[2]

    def plainly() -> None:
        for mixture, experts_TC in layers:
            for expert in experts_TC[:T].unique().tolist():
                mixture.expert(expert)

    if not x_TH.is_cuda:
        return Part(plainly)
    scores_TC = torch.full((T, C), 1.0 / C, device=x_TH.device)
    groups = [mixture.grouped(experts_TC[:T]) for mixture, experts_TC in layers]

    def prepare() -> None:
        for (mixture, experts_TC), kept in zip(layers, groups, strict=True):
            found = mixture.grouped(experts_TC[:T])
            kept.expert_G.copy_(found.expert_G)
            kept.pair_GM.copy_(found.pair_GM)

    def by_kernels() -> None:
        for (mixture, _), found in zip(layers, groups, strict=True):
            out_CTH = torch.empty((C, *x_TH.shape), dtype=torch.float32, device=x_TH.device)
            mixture.routed_into(out_CTH, x_TH, found, scores_TC)

    return Part(by_kernels, prepare=prepare)


def experts_of_many(drawn: Drawn, num_tokens: int, pairs: int | None = None) -> tuple[Part, float]:
    """The routed experts by tiles, of `pairs` each if that is told, and how many experts a layer's tokens touch.

    Tokens are spread once, alike in all layers: of so many, every expert has some.
    """
    mixtures, x_TH = drawn.mixtures, _states(drawn, num_tokens)[0]
    config = mixtures[0].config
    noise_TE = torch.rand((num_tokens, config.num_experts), device=x_TH.device)
    experts_TC = noise_TE.topk(config.num_chosen, dim=-1).indices.int()
    scores_TC = torch.full(experts_TC.shape, 1.0 / config.num_chosen, device=x_TH.device)
    touched = experts_TC.unique().tolist()

    def by_kernels() -> None:
        from outpace.kernels.gpu.tiled_mixture import mixture_tiled, tile_with

        for mixture in mixtures:
            assert mixture.packed is not None
            packed = mixture.packed
            tile = None if pairs is None else tile_with(pairs, packed.gate_up.bits)
            mixture_tiled(x_TH, experts_TC, scores_TC, packed.gate_up, packed.down, tile=tile)

    def plainly() -> None:
        for mixture in mixtures:
            for expert in touched:
                mixture.expert(expert)

    return Part(by_kernels if x_TH.is_cuda else plainly), float(len(touched))


def parts_of(drawn: Drawn, attend: Callable[[], PagedAttend], num_tokens: int, positions_BS: Tensor) -> dict[str, Part]:
    """The parts of a forward by name."""
    model, x_BSH = drawn.model, _states(drawn, num_tokens)
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
        """To the groups of those who chose the same expert."""
        for mixture in drawn.mixtures:
            if on_gpu:
                mixture.grouped(mixture.route(x_BSH[0])[0])
            else:
                mixture.choose(x_BSH[0])

    def norms() -> None:
        for layer in layers:
            layer.input_norm.add(x_BSH, x_BSH)
            layer.mlp_norm.add(x_BSH, x_BSH)

    products = [product for block in attentions for product in (block.down, block.q_up, block.output)]
    return {
        "attention": Part(attention, num_bytes_of(attentions)),
        "of it: down, query and output products": Part(_each(products, x_BSH), num_bytes_of(products), stacks=False),
        "experts": experts_of(drawn, num_tokens),
        "routers": Part(routers, num_bytes_of([mixture.router for mixture in drawn.mixtures])),
        "shared experts": Part(_each(shared, x_BSH), num_bytes_of(shared)),
        "dense layers": Part(_each(dense, x_BSH), num_bytes_of(dense)),
        "norms": Part(norms, num_bytes_of([norm for layer in layers for norm in (layer.input_norm, layer.mlp_norm)])),
        "head": Part(lambda: model.logits(x_BSH).argmax(-1), num_bytes_of([model.lm_head])),
    }


def _states(drawn: Drawn, num_tokens: int) -> Tensor:
    """Random hidden states of one row."""
    weight = drawn.model.embed.weight
    return torch.randn((1, num_tokens, weight.shape[1]), device=weight.device).to(weight.dtype)


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
