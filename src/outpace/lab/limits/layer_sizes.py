"""How much a layer reads and multiplies: its products by name, as arithmetic on what targets and drafters say of it.

Names of products are those of `models.slots.PRODUCTS`, so that what stays packed is known by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.models.arch import TargetConfig
from outpace.models.packed import Packing
from outpace.models.wiring import LayerShape

Products = dict[str, tuple[int, int]]
"""By name: outputs and inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """Of one layer, in elements."""

    products: Products
    biases: int
    norms: int
    """Weights of those within it."""
    cached: int
    """Of one token's keys and values, or its latent."""
    flops_per_pair: int
    """For each token and token of its context."""


def attention_sizes(shape: TargetConfig | LayerShape, num_inputs: int) -> AttentionSizes:
    """Of a layer whose attention has so many inputs."""
    hidden, heads, D, latent = shape.hidden_size, shape.num_heads, shape.head_dim, shape.latent
    if latent is None:
        kv = shape.num_kv_heads * D
        qkv = heads * D + 2 * kv
        return AttentionSizes(
            products={"attention.qkv": (qkv, num_inputs), "attention.output": (hidden, heads * D)},
            biases=(qkv if shape.qkv_bias else 0) + (hidden if shape.output_bias else 0),
            norms=2 * D if shape.qk_norm else 0,
            cached=2 * kv,
            flops_per_pair=4 * heads * D,
        )
    down, rank = (latent.q_rank or 0) + latent.kv_rank + D, latent.kv_rank
    return AttentionSizes(
        products={
            "attention.down": (down, num_inputs),
            "attention.q_up": (heads * (latent.plain_dim + D), latent.q_rank or num_inputs),
            "attention.kv_up": (heads * (latent.plain_dim + latent.value_dim), rank),
            "attention.output": (hidden, heads * latent.value_dim),
        },
        biases=(down if shape.qkv_bias else 0) + (hidden if shape.output_bias else 0),
        norms=(latent.q_rank or 0) + rank,
        cached=rank + D,
        flops_per_pair=2 * heads * (2 * rank + D),
    )


def mlp_products(hidden: int, width: int, name: str = "mlp") -> Products:
    return {f"{name}.gate_up": (2 * width, hidden), f"{name}.down": (hidden, width)} if width else {}


def layer_products(config: TargetConfig, index: int) -> Products:
    """All but routed experts."""
    hidden, mixture = config.hidden_size, config.mixture
    products = attention_sizes(config, hidden).products
    if mixture is None or not mixture.layers[index]:
        return products | mlp_products(hidden, config.intermediate_size)
    router: Products = {"mlp.router": (mixture.num_experts, hidden)}
    return products | router | mlp_products(hidden, mixture.shared_size, "mlp.shared")


def num_weights(products: Products) -> int:
    """Of all of them."""
    return sum(outputs * inputs for outputs, inputs in products.values())


def layer_bytes(config: TargetConfig, index: int, itemsize: int, packing: Packing | None) -> int:
    """Of a layer's products, packed as they lie."""
    total = 0
    for path, (outputs, inputs) in layer_products(config, index).items():
        packed = packing is not None and (index, path) in packing.products
        total += packing.num_bytes(outputs, inputs) if packed and packing is not None else outputs * inputs * itemsize
    return total


def expert_bytes(config: TargetConfig, index: int, itemsize: int, packing: Packing | None) -> int:
    """Of one routed expert of that layer; 0 if it has none."""
    mixture, hidden = config.mixture, config.hidden_size
    if mixture is None or not mixture.layers[index]:
        return 0
    width = mixture.intermediate_size
    if packing is None or index not in packing.layers:
        return 3 * hidden * width * itemsize
    return packing.num_bytes(2 * width, hidden) + packing.num_bytes(hidden, width)
