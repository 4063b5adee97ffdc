"""What DeepSeek-V2, DeepSeek-V3 and Kimi-K2 say in config.json of latent attention and of experts."""

from __future__ import annotations

import math

from outpace.errors import CheckpointError
from outpace.models.arch import MAX_EXPERTS, MAX_HEAD_DIM, MAX_WIDTH, LatentConfig, MixtureConfig
from outpace.models.fields import Fields

DEEPSEEK = ("deepseek_v2", "deepseek_v3")
MUST_BE: dict[str, dict[str, tuple[object, ...]]] = {
    "deepseek_v2": {
        "scoring_func": (None, "softmax"),
        "topk_method": (None, "greedy", "group_limited_greedy"),
        "moe_layer_freq": (None, 1),
    },
    "deepseek_v3": {
        "scoring_func": (None, "sigmoid"),
        "topk_method": (None, "noaux_tc"),
        "moe_layer_freq": (None, 1),
    },
}
"""Fields that change the maths, and the values that do not."""


def read_latent(fields: Fields, architecture: str, num_heads: int) -> LatentConfig | None:
    """Latent attention; None if the architecture has none.

    Raises:
        CheckpointError: a field is missing or out of its range.
    """
    if architecture not in DEEPSEEK:
        return None
    if (num_kv_heads := fields.integer("num_key_value_heads", num_heads)) != num_heads:
        raise CheckpointError(
            f"{fields.origin}: num_key_value_heads is {num_kv_heads}; with latent attention it is num_attention_heads"
        )
    plain = fields.integer("qk_nope_head_dim", maximum=MAX_HEAD_DIM)
    rank = fields.get("q_lora_rank")
    return LatentConfig(
        kv_rank=fields.integer("kv_lora_rank", maximum=MAX_WIDTH),
        q_rank=None if rank is None else fields.integer("q_lora_rank", maximum=MAX_WIDTH),
        plain_dim=plain,
        value_dim=fields.integer("v_head_dim", maximum=MAX_HEAD_DIM),
        scale=(plain + turned_dim(fields)) ** -0.5 * _stretch(fields) ** 2,
        interleaved=architecture == "deepseek_v2" or fields.flag("rope_interleave", True),
    )


def turned_dim(fields: Fields) -> int:
    """Dimensions of a head that are turned."""
    turned = fields.integer("qk_rope_head_dim", minimum=2, maximum=MAX_HEAD_DIM)
    if turned % 2:
        raise CheckpointError(f"{fields.origin}: qk_rope_head_dim is {turned}; it must be even, as pairs are turned")
    return turned


def _stretch(fields: Fields) -> float:
    """What yarn adds to the softmax's scale, before it is squared."""
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    inner = Fields(rope, f"{fields.origin}, rope settings")
    kind = inner.get("rope_type") or inner.get("type") or "default"
    if kind == "default" or not inner.get("mscale_all_dim"):
        return 1.0
    factor = inner.number("factor")
    return 0.1 * inner.number("mscale_all_dim") * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def read_experts(fields: Fields, architecture: str, num_layers: int) -> MixtureConfig:
    """The experts.

    Raises:
        CheckpointError: a field is missing or out of its range.
    """
    third = architecture == "deepseek_v3"
    num_experts = fields.integer("n_routed_experts", maximum=MAX_EXPERTS)
    num_chosen = fields.integer("num_experts_per_tok", maximum=MAX_EXPERTS)
    groups, chosen_groups = _groups(fields, third, num_experts)
    if num_chosen > chosen_groups * (num_experts // groups):
        raise CheckpointError(
            f"{fields.origin}: num_experts_per_tok is {num_chosen}; {chosen_groups} of {groups} groups hold "
            f"{chosen_groups * (num_experts // groups)} of the {num_experts} experts"
        )
    width = fields.integer("moe_intermediate_size", maximum=MAX_WIDTH)
    first = fields.integer("first_k_dense_replace", 3 if third else 0, minimum=0)
    return MixtureConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=width,
        normalizes=third and fields.flag("norm_topk_prob", True),
        layers=tuple(layer >= first for layer in range(num_layers)),
        scoring="sigmoid" if third else "softmax",
        num_groups=groups,
        num_chosen_groups=chosen_groups,
        corrects=third,
        scale=fields.number("routed_scaling_factor", 2.5 if third else 1.0),
        shared_size=width * fields.integer("n_shared_experts", 1 if third else 2),
        routes_in_float32=True,
    )


def _groups(fields: Fields, third: bool, num_experts: int) -> tuple[int, int]:
    """How many groups there are, and how many of them a token may use."""
    if not third and fields.get("topk_method") != "group_limited_greedy":
        return 1, 1
    groups = fields.integer("n_group", 8 if third else None, maximum=num_experts)
    chosen = fields.integer("topk_group", 4 if third else None, maximum=groups)
    if num_experts % groups:
        raise CheckpointError(f"{fields.origin}: n_group is {groups}; it must divide the {num_experts} experts")
    return groups, chosen
