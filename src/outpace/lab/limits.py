"""The least that a forward can take: bytes it must read over the copy rate, and products over the matrix rate.

A plain step reads every weight of the layers and the head once, one row of the embedding table a token, and the keys
and values of every row's context. Activations, logits and the new tokens' own keys and values are left out, and so are
attention windows. A copy writes as much as it reads; where reading alone is quicker, a forward may come out a little
under its limit.

Legend: B rows, k drafts, S = k+1 tokens a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outpace.errors import ConfigError
from outpace.lab.rates import Rates
from outpace.models.arch import TargetConfig
from outpace.models.wiring import DrafterWiring


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

    def num_bytes(self, num_rows: int, tokens: int, context: int) -> int:
        """Of a forward over `num_rows` rows with `tokens` new tokens and `context` older ones each."""
        return self.weights + num_rows * (tokens * self.embedding_row + context * self.kv_per_token)

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


def limits_of(config: TargetConfig, wiring: DrafterWiring | None, dtype: torch.dtype, rates: Rates) -> Limits:
    """Limits of a target and, with `wiring`, its drafter.

    Args:
        dtype: of weights, keys and values.
        rates: of the device.
    """
    return Limits(
        target=target_reads(config, dtype.itemsize),
        drafter=None if wiring is None else drafter_reads(wiring, dtype.itemsize),
        fusion=None if wiring is None else fusion_reads(wiring, dtype.itemsize),
        rates=rates,
    )


def target_reads(config: TargetConfig, itemsize: int) -> Reads:
    """One forward of the target: all layers, final norm and head.

    Raises:
        ConfigError: it is a mixture of experts, whose bytes depend on those that are chosen, or has latent attention.
    """
    if config.mixture is not None or config.latent is not None:
        raise ConfigError(f"limits are for dense models; {config.architecture} is none")
    hidden, head_dim = config.hidden_size, config.head_dim
    q, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    products = (q + 2 * kv) * hidden + q * hidden + 3 * hidden * config.intermediate_size
    small = 2 * hidden + (2 * head_dim if config.qk_norm else 0)
    small += (q + 2 * kv if config.qkv_bias else 0) + (hidden if config.output_bias else 0)
    small += 2 * config.intermediate_size + hidden if config.mlp_bias else 0
    head = config.vocab_size * hidden
    return Reads(
        weights=itemsize * (config.num_layers * (products + small) + hidden + head),
        embedding_row=itemsize * hidden,
        kv_per_token=itemsize * config.num_layers * 2 * kv,
        flops_per_token=2 * (config.num_layers * products + head),
        flops_head=2 * head,
        flops_per_pair=4 * config.num_layers * q,
    )


def drafter_reads(wiring: DrafterWiring, itemsize: int) -> Reads:
    """One draft step: the layer, its norms and the draft head.

    Raises:
        ConfigError: it has latent attention.
    """
    shape = wiring.shape
    if shape.latent is not None:
        raise ConfigError("limits are for dense models; the drafter has latent attention")
    hidden, head_dim = shape.hidden_size, shape.head_dim
    q, kv = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
    products = (q + 2 * kv) * 2 * hidden + q * hidden + 3 * hidden * shape.intermediate_size
    small = 4 * hidden + (2 * head_dim if shape.qk_norm else 0)
    small += (q + 2 * kv if shape.qkv_bias else 0) + (hidden if shape.output_bias else 0)
    small += 2 * shape.intermediate_size + hidden if shape.mlp_bias else 0
    head = wiring.draft_vocab_size * hidden
    return Reads(
        weights=itemsize * (products + small + head),
        embedding_row=itemsize * hidden,
        kv_per_token=itemsize * 2 * kv,
        flops_per_token=2 * (products + head),
        flops_head=2 * head,
        flops_per_pair=4 * q,
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
