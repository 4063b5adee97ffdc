"""The least that a forward can take: bytes it must read over the copy rate, and products over the matrix rate.

A plain step reads every weight of the layers and the head once, one row of the embedding table a token, the keys and
values (or latents) of every row's context, and of routed experts those that tokens touch. Which they are depends on the
text: the limit is that of experts chosen evenly and independently. Packed weights count as they lie. Activations,
logits and the new tokens' own keys and values are left out, and so are attention windows. A copy writes as much as it
reads; where reading alone is quicker, a forward may come out a little under its limit.

Legend: B rows, k drafts, S = k+1 tokens a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outpace.lab.limits.layer_sizes import (
    attention_sizes,
    expert_bytes,
    layer_bytes,
    layer_products,
    mlp_products,
    num_weights,
)
from outpace.lab.limits.rates import Rates
from outpace.models.arch import MixtureConfig, TargetConfig
from outpace.models.packed import Packing
from outpace.models.wiring import DrafterWiring, LayerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What one forward of a part reads and multiplies."""

    weights: int
    """Bytes read once a forward, whatever the batch."""
    embedding_row: int
    """Bytes read once a token."""
    kv_per_token: int
    """Bytes of keys and values of one token of context."""
    flops_per_token: int
    """Of its products, two for each weight."""
    flops_head: int
    """What of these is the head's, which a prefill multiplies for its last token alone."""
    flops_per_pair: int
    """Of attention, for each token and token of its context."""
    mixture: MixtureConfig | None = None
    expert: int = 0
    """Bytes of one routed expert of every layer that has some."""

    def num_bytes(self, num_rows: int, tokens: int, context: int) -> int:
        """Of a forward over `num_rows` rows with `tokens` new tokens and `context` older ones each."""
        experts = 0 if self.mixture is None else round(self.expert * touched(self.mixture, num_rows * tokens))
        return self.weights + experts + num_rows * (tokens * self.embedding_row + context * self.kv_per_token)

    def prefill_flops(self, tokens: int) -> int:
        """Of a prompt of so many tokens, each of which sees those before it and itself."""
        products = tokens * (self.flops_per_token - self.flops_head) + self.flops_head
        return products + tokens * (tokens + 1) // 2 * self.flops_per_pair

    def seconds(self, num_rows: int, tokens: int, context: int, rates: Rates) -> float:
        """The least that this forward can take: reading or multiplying, whichever is longer."""
        flops = num_rows * tokens * (self.flops_per_token + context * self.flops_per_pair)
        return max(self.num_bytes(num_rows, tokens, context) / rates.copy_bytes_s, flops / rates.matrix_flops_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of plain steps and cycles for one pair of models on one device, in seconds."""

    target: Reads
    drafter: Reads | None
    """One draft step."""
    fusion: Reads | None
    rates: Rates

    def plain(self, num_rows: int, context: int) -> float:
        """A plain step."""
        return self.target.seconds(num_rows, 1, context, self.rates)

    def verify(self, num_rows: int, k: int, context: int) -> float:
        """The target over k+1 tokens a row, without the fusion."""
        return self.target.seconds(num_rows, k + 1, context, self.rates)

    def draft(self, num_rows: int, k: int, context: int) -> float:
        """k draft steps, one after another."""
        return 0.0 if self.drafter is None else k * self.drafter.seconds(num_rows, 1, context, self.rates)

    def fuse(self, num_rows: int, k: int) -> float:
        """Features of k+1 tokens a row."""
        return 0.0 if self.fusion is None or not k else self.fusion.seconds(num_rows, k + 1, 0, self.rates)

    def cycle(self, num_rows: int, k: int, context: int) -> float:
        """A whole cycle; k = 0 is a plain step."""
        stages = (self.verify(num_rows, k, context), self.draft(num_rows, k, context), self.fuse(num_rows, k))
        return sum(stages)


def touched(mixture: MixtureConfig, tokens: int) -> float:
    """Experts of a layer that so many tokens go through, on average: of E, n tokens of c each E · (1 - (1 - c/E)^n)."""
    missed = (1.0 - mixture.num_chosen / mixture.num_experts) ** tokens
    return mixture.num_experts * (1.0 - missed)


def limits_of(
    config: TargetConfig,
    wiring: DrafterWiring | None,
    dtype: torch.dtype,
    rates: Rates,
    packing: Packing | None = None,
) -> Limits:
    """Limits of a target and, with `wiring`, its drafter.

    Args:
        dtype: of weights, keys and values.
        rates: of the device.
        packing: what of the target stays packed.
    """
    return Limits(
        target=target_reads(config, dtype.itemsize, packing),
        drafter=None if wiring is None else drafter_reads(wiring, dtype.itemsize),
        fusion=None if wiring is None else fusion_reads(wiring, dtype.itemsize),
        rates=rates,
    )


def target_reads(config: TargetConfig, itemsize: int, packing: Packing | None = None) -> Reads:
    """One forward of the target: all layers, final norm and head."""
    hidden, layers, mixture = config.hidden_size, range(config.num_layers), config.mixture
    sizes = attention_sizes(config, hidden)
    num_mixed = 0 if mixture is None else sum(mixture.layers)
    small = config.num_layers * (2 * hidden + sizes.norms + sizes.biases) + hidden
    small += (config.num_layers - num_mixed) * mlp_biases(config)
    products = sum(num_weights(layer_products(config, index)) for index in layers)
    chosen = 0 if mixture is None else num_mixed * mixture.num_chosen * 3 * hidden * mixture.intermediate_size
    head = config.vocab_size * hidden
    return Reads(
        weights=sum(layer_bytes(config, index, itemsize, packing) for index in layers) + itemsize * (small + head),
        embedding_row=itemsize * hidden,
        kv_per_token=itemsize * config.num_layers * sizes.cached,
        flops_per_token=2 * (products + chosen + head),
        flops_head=2 * head,
        flops_per_pair=config.num_layers * sizes.flops_per_pair,
        mixture=mixture,
        expert=sum(expert_bytes(config, index, itemsize, packing) for index in layers),
    )


def mlp_biases(shape: TargetConfig | LayerShape) -> int:
    """Elements, of one layer."""
    return 2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0


def drafter_reads(wiring: DrafterWiring, itemsize: int) -> Reads:
    """One draft step: the layer, its norms and the draft head."""
    shape, hidden = wiring.shape, wiring.shape.hidden_size
    sizes = attention_sizes(shape, 2 * hidden)
    products = num_weights(sizes.products | mlp_products(hidden, shape.intermediate_size))
    small = 4 * hidden + sizes.norms + sizes.biases + mlp_biases(shape)
    head = wiring.draft_vocab_size * hidden
    return Reads(
        weights=itemsize * (products + small + head),
        embedding_row=itemsize * hidden,
        kv_per_token=itemsize * sizes.cached,
        flops_per_token=2 * (products + head),
        flops_head=2 * head,
        flops_per_pair=sizes.flops_per_pair,
    )


def fusion_reads(wiring: DrafterWiring, itemsize: int) -> Reads:
    """Fusing the tapped features once a cycle."""
    num_features = len(wiring.aux_boundaries) * wiring.target_hidden_size
    product = num_features * wiring.hidden_size if wiring.has_fc else 0
    small = wiring.hidden_size if wiring.has_fc and wiring.shape.fc_bias else 0
    small += num_features if wiring.fusion_norm != "none" else 0
    return Reads(
        weights=itemsize * (product + small),
        embedding_row=0,
        kv_per_token=0,
        flops_per_token=2 * product,
        flops_head=0,
        flops_per_pair=0,
    )
