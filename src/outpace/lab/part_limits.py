"""The least that each part of a cycle can take: `limits`, part by part. What is small and has no limit is left out.

Which experts a token chooses depends on the text; the limit is that of experts chosen evenly and independently: of E
experts, n tokens of c each touch E · (1 - (1 - c/E)^n) on average.

Legend: B rows, k drafts, S = k+1 tokens a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import ConfigError
from outpace.lab.limits import fusion_reads
from outpace.lab.rates import Rates
from outpace.models.arch import MixtureConfig, TargetConfig
from outpace.models.wiring import DrafterWiring


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes that have to be read, and operations to be done."""

    num_bytes: float
    flops: float = 0.0

    def seconds(self, rates: Rates) -> float:
        return max(self.num_bytes / rates.copy_bytes_s, self.flops / rates.matrix_flops_s)


def verify_parts(config: TargetConfig, itemsize: int, num_rows: int, tokens: int, context: int) -> dict[str, Least]:
    """One forward of the target by part; the sum of all bytes but sampling's, and of an embedding row for each token,
    is `limits.Reads.num_bytes` for a dense model.

    Raises:
        ConfigError: it has latent attention, whose reads are not told yet.
    """
    if config.latent is not None:
        raise ConfigError(f"limits are not told for latent attention, which {config.architecture} has")
    hidden, layers, head_dim = config.hidden_size, config.num_layers, config.head_dim
    q, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    all_tokens = num_rows * tokens
    mixture = config.mixture
    num_dense = layers if mixture is None else layers - sum(mixture.layers)
    products = layers * ((q + 2 * kv) * hidden + q * hidden) + num_dense * 3 * hidden * config.intermediate_size
    biases = layers * ((q + 2 * kv if config.qkv_bias else 0) + (hidden if config.output_bias else 0))
    biases += num_dense * (2 * config.intermediate_size + hidden if config.mlp_bias else 0)
    found = {
        "attention": Least(itemsize * num_rows * context * layers * 2 * kv, all_tokens * context * 4 * layers * q),
        "norms": Least(itemsize * (layers * (2 * hidden + (2 * head_dim if config.qk_norm else 0)) + hidden)),
        "head": Least(itemsize * config.vocab_size * hidden, 2 * all_tokens * config.vocab_size * hidden),
    }
    if mixture is not None:
        num = sum(mixture.layers)
        products += num * hidden * (mixture.num_experts + 3 * mixture.shared_size)
        expert = 3 * hidden * mixture.intermediate_size
        weights = itemsize * num * touched(mixture, all_tokens) * expert
        found["experts"] = Least(weights, 2 * all_tokens * num * mixture.num_chosen * expert)
    found["linear layers"] = Least(itemsize * (products + biases), 2 * all_tokens * products)
    return found


def touched(mixture: MixtureConfig, tokens: int) -> float:
    """Experts of a layer that so many tokens go through, on average."""
    missed = (1.0 - mixture.num_chosen / mixture.num_experts) ** tokens
    return mixture.num_experts * (1.0 - missed)


def draft_parts(wiring: DrafterWiring, itemsize: int, num_rows: int, k: int, context: int) -> dict[str, Least]:
    """k draft steps by part. The first sees up to k+1 tokens a row, which changes no bytes."""
    shape = wiring.shape
    hidden, head_dim = shape.hidden_size, shape.head_dim
    q, kv = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
    products = (q + 2 * kv) * 2 * hidden + q * hidden + 3 * hidden * shape.intermediate_size
    biases = (q + 2 * kv if shape.qkv_bias else 0) + (hidden if shape.output_bias else 0)
    biases += 2 * shape.intermediate_size + hidden if shape.mlp_bias else 0
    head = wiring.draft_vocab_size * hidden
    return {
        "attention": Least(k * itemsize * num_rows * context * 2 * kv, k * num_rows * context * 4 * q),
        "linear layers": Least(k * itemsize * (products + biases), k * num_rows * 2 * products),
        "norms": Least(k * itemsize * (4 * hidden + (2 * head_dim if shape.qk_norm else 0))),
        "head": Least(k * itemsize * head, k * num_rows * 2 * head),
    }


def cycle_parts(
    config: TargetConfig, wiring: DrafterWiring | None, itemsize: int, *, num_rows: int, k: int, context: int
) -> dict[str, dict[str, Least]]:
    """A cycle by phase and part; k = 0 is a plain step.

    Raises:
        ConfigError: as `verify_parts`.
    """
    verify = verify_parts(config, itemsize, num_rows, k + 1, context)
    sampling = {"sampling": Least(itemsize * num_rows * (k + 1) * config.vocab_size)}
    if wiring is None or not k:
        return {"verify": verify, "accept": sampling}
    fusion = fusion_reads(wiring, itemsize)
    verify["fusion"] = Least(fusion.weights, num_rows * (k + 1) * fusion.flops_per_token)
    draft = draft_parts(wiring, itemsize, num_rows, k, context)
    draft["sampling"] = Least(itemsize * num_rows * k * wiring.draft_vocab_size)
    return {"draft": draft, "verify": verify, "accept": sampling}
