"""The experts of a transformers config.json, as Mixtral and Qwen3-MoE write them; DeepSeek's are in `deepseek`."""

from __future__ import annotations

from outpace.errors import CheckpointError
from outpace.models.arch import MAX_EXPERTS, MAX_WIDTH, MixtureConfig
from outpace.models.fields import Fields
from outpace.models.hf.deepseek import DEEPSEEK, read_experts

MIXTURES = ("mixtral", "qwen3_moe")
"""Architectures whose experts are read here."""


def read_mixture(fields: Fields, architecture: str, num_layers: int) -> MixtureConfig | None:
    """What the config says of experts; None if the architecture has none.

    Raises:
        CheckpointError: a field is missing or out of its range.
    """
    if architecture in DEEPSEEK:
        return read_experts(fields, architecture, num_layers)
    if architecture not in MIXTURES:
        return None
    num_experts = _num_experts(fields, architecture)
    num_chosen = fields.integer("num_experts_per_tok", maximum=MAX_EXPERTS)
    if num_chosen > num_experts:
        raise CheckpointError(
            f"{fields.origin}: num_experts_per_tok is {num_chosen}; there are {num_experts} experts to choose from"
        )
    if architecture == "mixtral":
        width = fields.integer("intermediate_size", maximum=MAX_WIDTH)
        return MixtureConfig(
            num_experts=num_experts,
            num_chosen=num_chosen,
            intermediate_size=width,
            normalizes=True,
            layers=(True,) * num_layers,
        )
    return MixtureConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=fields.integer("moe_intermediate_size", maximum=MAX_WIDTH),
        normalizes=fields.flag("norm_topk_prob"),
        layers=_qwen_layers(fields, num_layers),
    )


def _num_experts(fields: Fields, architecture: str) -> int:
    """Qwen's own checkpoints say `num_experts`; what transformers 5 writes says `num_local_experts` for both."""
    if architecture == "qwen3_moe" and fields.get("num_experts") is not None:
        return fields.integer("num_experts", maximum=MAX_EXPERTS)
    return fields.integer("num_local_experts", maximum=MAX_EXPERTS)


def _qwen_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer, those named in `mlp_only_layers` left out."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise CheckpointError(f"{fields.origin}: mlp_only_layers is {dense!r}; it must be a list of layer numbers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))
