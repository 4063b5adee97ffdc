"""The least that each part of a cycle can take: `limits`, part by part. What is small and has no limit is left out.

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
from outpace.lab.limits.reads import fusion_reads, mlp_biases, touched
from outpace.models.arch import TargetConfig
from outpace.models.packed import Packing
from outpace.models.wiring import DrafterWiring


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes that have to be read, and operations to be done."""

    num_bytes: float
    flops: float = 0.0

    def seconds(self, rates: Rates) -> float:
        return max(self.num_bytes / rates.copy_bytes_s, self.flops / rates.matrix_flops_s)


def verify_parts(
    config: TargetConfig, itemsize: int, num_rows: int, tokens: int, context: int, packing: Packing | None = None
) -> dict[str, Least]:
    """One forward of the target by part; the sum of all bytes but sampling's, and of an embedding row for each token,
    is `limits.Reads.num_bytes`."""
    hidden, layers, mixture = config.hidden_size, range(config.num_layers), config.mixture
    sizes, num = attention_sizes(config, hidden), config.num_layers
    all_tokens = num_rows * tokens
    products = sum(num_weights(layer_products(config, index)) for index in layers)
    num_mixed = 0 if mixture is None else sum(mixture.layers)
    biases = num * sizes.biases + (num - num_mixed) * mlp_biases(config)
    found = {
        "attention": Least(
            itemsize * num_rows * context * num * sizes.cached, all_tokens * context * num * sizes.flops_per_pair
        ),
        "norms": Least(itemsize * (num * (2 * hidden + sizes.norms) + hidden)),
        "head": Least(itemsize * config.vocab_size * hidden, 2 * all_tokens * config.vocab_size * hidden),
        "linear layers": Least(
            sum(layer_bytes(config, index, itemsize, packing) for index in layers) + itemsize * biases,
            2 * all_tokens * products,
        ),
    }
    if mixture is not None:
        each = sum(expert_bytes(config, index, itemsize, packing) for index in layers)
        flops = 2 * all_tokens * num_mixed * mixture.num_chosen * 3 * hidden * mixture.intermediate_size
        found["experts"] = Least(touched(mixture, all_tokens) * each, flops)
    return found


def draft_parts(wiring: DrafterWiring, itemsize: int, num_rows: int, k: int, context: int) -> dict[str, Least]:
    """k draft steps by part. The first sees up to k+1 tokens a row, which changes no bytes."""
    shape, hidden = wiring.shape, wiring.shape.hidden_size
    sizes = attention_sizes(shape, 2 * hidden)
    products = num_weights(sizes.products | mlp_products(hidden, shape.intermediate_size))
    head, biases = wiring.draft_vocab_size * hidden, sizes.biases + mlp_biases(shape)
    return {
        "attention": Least(
            k * itemsize * num_rows * context * sizes.cached, k * num_rows * context * sizes.flops_per_pair
        ),
        "linear layers": Least(k * itemsize * (products + biases), k * num_rows * 2 * products),
        "norms": Least(k * itemsize * (4 * hidden + sizes.norms)),
        "head": Least(k * itemsize * head, k * num_rows * 2 * head),
    }


def cycle_parts(
    config: TargetConfig,
    wiring: DrafterWiring | None,
    itemsize: int,
    *,
    num_rows: int,
    k: int,
    context: int,
    packing: Packing | None = None,
) -> dict[str, dict[str, Least]]:
    """A cycle by phase and part; k = 0 is a plain step."""
    verify = verify_parts(config, itemsize, num_rows, k + 1, context, packing)
    sampling = {"sampling": Least(itemsize * num_rows * (k + 1) * config.vocab_size)}
    if wiring is None or not k:
        return {"verify": verify, "accept": sampling}
    fusion = fusion_reads(wiring, itemsize)
    verify["fusion"] = Least(fusion.weights, num_rows * (k + 1) * fusion.flops_per_token)
    draft = draft_parts(wiring, itemsize, num_rows, k, context)
    draft["sampling"] = Least(itemsize * num_rows * k * wiring.draft_vocab_size)
    return {"draft": draft, "verify": verify, "accept": sampling}
