"""The rope settings of a config.json, in either of the two spellings: `rope_parameters` (transformers 5) and
`rope_theta` beside `rope_scaling` (older). What transformers would compute differently is refused.

Source: transformers' `modeling_rope_utils` (RotaryEmbeddingConfigMixin and the ROPE_INIT_FUNCTIONS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from outpace.errors import CheckpointError
from outpace.models.arch import RopeConfig, RopeKind
from outpace.models.fields import Fields

DEFAULT_THETA = 10_000.0

CONFIG_FIELDS = frozenset(
    {"rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor"}
)
"""The fields of a config.json that are read here."""

_KNOWN = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "partial_rotary_factor",
        "finetuned",
    }
)


def read_rope(config: Mapping[str, Any], max_positions: int, origin: str = "config.json") -> RopeConfig:
    """The rope settings of a config.json's top level (a target's or a drafter's).

    Args:
        config: the JSON object.
        max_positions: its max_position_embeddings.
        origin: how errors call it.

    Raises:
        CheckpointError: the kind is unknown, a field is missing, or a field would change the maths unread.
    """
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"{origin}: the rope settings are {settings!r}; they must be an object")
    if unknown := sorted(set(settings) - _KNOWN):
        raise CheckpointError(
            f"{origin}: rope setting {unknown[0]} = {settings[unknown[0]]!r} is not known here; it may change the "
            "positions, and settings for each layer type are not served: use a checkpoint without it"
        )
    fields = Fields(_merged(config, settings), f"{origin}, rope settings")
    if (part := fields.get("partial_rotary_factor")) not in (None, 1):
        raise CheckpointError(f"{origin}: partial_rotary_factor is {part}; only 1, whole heads, is served")
    return _rope(fields, _kind(fields), max_positions)


def _merged(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what stands beside them: there theta is a default, the original context has precedence."""
    merged = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    merged |= {name: value for name, value in settings.items() if value is not None}
    if config.get("original_max_position_embeddings") is not None:
        merged["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return merged


def _kind(fields: Fields) -> RopeKind:
    name = fields.get("rope_type") or fields.get("type") or "default"
    for kind in get_args(RopeKind):
        if name == kind:
            found: RopeKind = kind
            return found
    raise CheckpointError(
        f"{fields.origin}: rope type {name!r} is not served; it must be one of {', '.join(get_args(RopeKind))}"
    )


def _rope(fields: Fields, kind: RopeKind, max_positions: int) -> RopeConfig:
    theta = fields.number("rope_theta", DEFAULT_THETA, above=1.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=fields.number("factor"))
    original = fields.integer("original_max_position_embeddings", max_positions)
    if kind == "llama3":
        return _llama3(fields, theta, original)
    factor = fields.number("factor", max_positions / original)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_max_positions=original,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        attention_factor=_attention_factor(fields, factor),
        truncate=fields.flag("truncate", True),
    )


def _llama3(fields: Fields, theta: float, original: int) -> RopeConfig:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        raise CheckpointError(f"{fields.origin}: high_freq_factor is {high}; it must exceed low_freq_factor, {low}")
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=fields.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original,
    )


def _attention_factor(fields: Fields, factor: float) -> float | None:
    """An explicit factor, or DeepSeek's two mscales; None leaves YaRN's own formula."""
    if fields.get("attention_factor") is not None:
        return fields.number("attention_factor")
    mscale, all_dim = fields.get("mscale"), fields.get("mscale_all_dim")
    if not (mscale and all_dim):
        return None
    stretch = 0.1 * math.log(factor) if factor > 1.0 else 0.0
    return (stretch * fields.number("mscale") + 1.0) / (stretch * fields.number("mscale_all_dim") + 1.0)
