"""What each part of a forward reads and multiplies, counted from shapes. Sums of these are the whole's (`reads`).

A forward reads every weight of the layers and the head once, the keys and values (or latents) of every row's context,
and of routed experts those that tokens touch. Which they are depends on the text: it is counted as if experts were
chosen evenly and independently. Packed weights count as they lie. Activations, logits and the new tokens' own keys and
values are left out, and so are attention windows.

Legend: B rows, k drafts, S = k+1 tokens a row.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes that have to be read, and operations to be done."""

    num_bytes: float
    flops: float = 0.0

    def times(self, number: int) -> Least:
        """So often, one after another."""
        return Least(number * self.num_bytes, number * self.flops)

    def seconds(self, rates: Rates) -> float:
        """Reading or multiplying, whichever is longer.

        A copy writes as much as it reads; where reading alone is quicker, this may come out a little too long.
        """
        return max(self.num_bytes / rates.copy_bytes_s, self.flops / rates.matrix_flops_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of one forward."""

    weights: int = 0
    """Bytes read once a forward, whatever the batch."""
    kv_per_token: int = 0
    """Bytes of keys and values of one token of context."""
    flops_per_token: int = 0
    """Of its products, two for each weight."""
    flops_per_pair: int = 0
    """Of attention, for each token and token of its context."""
    mixture: MixtureConfig | None = None
    expert: int = 0
    """Bytes of one routed expert of every layer that has some."""

    def least(self, num_rows: int, tokens: int, context: int) -> Least:
        """Of a forward over `num_rows` rows with `tokens` new tokens and `context` older ones each."""
        experts = 0.0 if self.mixture is None else self.expert * touched(self.mixture, num_rows * tokens)
        return Least(
            self.weights + experts + num_rows * context * self.kv_per_token,
            num_rows * tokens * (self.flops_per_token + context * self.flops_per_pair),
        )


def touched(mixture: MixtureConfig, tokens: int) -> float:
    """Experts of a layer that so many tokens go through, on average: of E, n tokens of c each E · (1 - (1 - c/E)^n)."""
    missed = (1.0 - mixture.num_chosen / mixture.num_experts) ** tokens
    return mixture.num_experts * (1.0 - missed)


def target_parts(config: TargetConfig, itemsize: int, packing: Packing | None = None) -> dict[str, Part]:
    """One forward of the target: all layers, final norm and head."""
    hidden, num, mixture = config.hidden_size, config.num_layers, config.mixture
    sizes, layers = attention_sizes(config, hidden), range(config.num_layers)
    num_mixed = 0 if mixture is None else sum(mixture.layers)
    biases = num * sizes.biases + (num - num_mixed) * _mlp_biases(config)
    found = {
        "attention": Part(kv_per_token=itemsize * num * sizes.cached, flops_per_pair=num * sizes.flops_per_pair),
        "norms": Part(weights=itemsize * (num * (2 * hidden + sizes.norms) + hidden)),
        "head": _product(config.vocab_size * hidden, itemsize),
        "linear layers": Part(
            weights=sum(layer_bytes(config, index, itemsize, packing) for index in layers) + itemsize * biases,
            flops_per_token=2 * sum(num_weights(layer_products(config, index)) for index in layers),
        ),
    }
    if mixture is not None:
        found["experts"] = Part(
            mixture=mixture,
            expert=sum(expert_bytes(config, index, itemsize, packing) for index in layers),
            flops_per_token=2 * num_mixed * mixture.num_chosen * 3 * hidden * mixture.intermediate_size,
        )
    return found


def drafter_parts(wiring: DrafterWiring, itemsize: int) -> dict[str, Part]:
    """One draft step: the layer, its norms and the draft head."""
    shape, hidden = wiring.shape, wiring.shape.hidden_size
    sizes = attention_sizes(shape, 2 * hidden)
    products = num_weights(sizes.products | mlp_products(hidden, shape.intermediate_size))
    return {
        "attention": Part(kv_per_token=itemsize * sizes.cached, flops_per_pair=sizes.flops_per_pair),
        "linear layers": _product(products, itemsize, sizes.biases + _mlp_biases(shape)),
        "norms": Part(weights=itemsize * (4 * hidden + sizes.norms)),
        "head": _product(wiring.draft_vocab_size * hidden, itemsize),
    }


def fusion_part(wiring: DrafterWiring, itemsize: int) -> Part:
    """Fusing the tapped features, once a cycle."""
    num_features = len(wiring.aux_boundaries) * wiring.target_hidden_size
    small = wiring.hidden_size if wiring.has_fc and wiring.shape.fc_bias else 0
    small += num_features if wiring.fusion_norm != "none" else 0
    return _product(num_features * wiring.hidden_size if wiring.has_fc else 0, itemsize, small)


def _product(num_elements: int, itemsize: int, biases: int = 0) -> Part:
    return Part(weights=itemsize * (num_elements + biases), flops_per_token=2 * num_elements)


def _mlp_biases(shape: TargetConfig | LayerShape) -> int:
    """Elements, of one layer."""
    return 2 * shape.intermediate_size + shape.hidden_size if shape.mlp_bias else 0
