"""Shapes of one tensor-parallel rank of large mixtures of experts, as a model of its own, and what of it stays packed.

Sizes are those of moonshotai/Kimi-K2.5's and deepseek-ai/DeepSeek-V3's config.json. Kimi packs routed experts alone, in
INT4; DeepSeek packs all products but the router and the head, in FP8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outpace.models.arch import LatentConfig, MixtureConfig, RopeConfig, TargetConfig
from outpace.models.packed import Format, Packing


def kimi_rank(num_layers: int, ranks: int = 8) -> TargetConfig:
    """A rank's share: heads, MLPs, experts and vocabulary cut, latents and router whole."""
    plain, turned = 128, 64
    mixture = MixtureConfig(
        num_experts=384,
        num_chosen=8,
        intermediate_size=2048 // ranks,
        normalizes=True,
        layers=tuple(layer >= 1 for layer in range(num_layers)),
        scoring="sigmoid",
        corrects=True,
        scale=2.827,
        shared_size=2048 // ranks,
        routes_in_float32=True,
    )
    return TargetConfig(
        architecture="deepseek_v3",
        vocab_size=163840 // ranks,
        hidden_size=7168,
        num_layers=num_layers,
        num_heads=64 // ranks,
        num_kv_heads=64 // ranks,
        head_dim=turned,
        intermediate_size=18432 // ranks,
        norm_eps=1e-5,
        rope=RopeConfig(theta=50000.0),
        max_positions=262144,
        windows=(None,) * num_layers,
        mixture=mixture,
        latent=LatentConfig(
            kv_rank=512,
            q_rank=1536,
            plain_dim=plain,
            value_dim=128,
            scale=(plain + turned) ** -0.5,
            interleaved=False,
        ),
    )


def deepseek_rank(num_layers: int, ranks: int = 8) -> TargetConfig:
    """A rank's share of DeepSeek-V3."""
    kimi = kimi_rank(num_layers, ranks)
    assert kimi.mixture is not None
    return replace(
        kimi,
        vocab_size=129280 // ranks,
        num_heads=128 // ranks,
        num_kv_heads=128 // ranks,
        norm_eps=1e-6,
        rope=RopeConfig(theta=10000.0),
        max_positions=163840,
        mixture=replace(
            kimi.mixture,
            num_experts=256,
            num_groups=8,
            num_chosen_groups=4,
            scale=2.5,
            layers=tuple(layer >= 3 for layer in range(num_layers)),
        ),
    )


def tiny_rank(num_layers: int) -> TargetConfig:
    """The same architecture for tests on a CPU."""
    whole = kimi_rank(num_layers)
    assert whole.mixture is not None and whole.latent is not None
    return replace(
        whole,
        vocab_size=256,
        hidden_size=64,
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        mixture=replace(whole.mixture, num_experts=24, num_chosen=3, intermediate_size=32, shared_size=32),
        latent=replace(whole.latent, kv_rank=16, q_rank=32, plain_dim=8, value_dim=8),
    )


RANKS: dict[str, tuple[Callable[[int], TargetConfig], Format]] = {
    "kimi-k2.5-tp8": (kimi_rank, "int4"),
    "deepseek-v3-tp8": (deepseek_rank, "fp8"),
    "tiny": (tiny_rank, "int4"),
    "tiny-fp8": (tiny_rank, "fp8"),
}
"""By name: a rank of so many layers, and how its weights lie."""


def packing_of(config: TargetConfig, form: Format) -> Packing:
    """What stays packed: routed experts; in FP8 all products of `PRODUCTS` that there are."""
    assert config.mixture is not None
    layers = frozenset(layer for layer, there in enumerate(config.mixture.layers) if there)
    if form != "fp8":
        return Packing(layers, form)
    attention = {"attention.down", "attention.q_up", "attention.output"}
    mlp = {True: {"mlp.shared.gate_up", "mlp.shared.down"}, False: {"mlp.gate_up", "mlp.down"}}
    products = [(i, path) for i in range(config.num_layers) for path in attention | mlp[i in layers]]
    return Packing(layers, form, frozenset(products))
