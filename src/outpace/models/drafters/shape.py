"""A drafter's sizes, norms and limits, read from its config and from its tensors, which must agree.

Names here are canonical: the layer's tensors without `midlayer.` or `layers.0.`. Sizes that both sides give are
compared, optional parts are there when their tensors are.

Legend: H drafter hidden, Ht target hidden, A taps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from outpace.errors import DrafterError
from outpace.models.fields import Fields
from outpace.models.hf.deepseek import read_latent, turned_dim
from outpace.models.wiring import FusionNorm, LayerShape

DEFAULT_MAX_POSITIONS = 2048
"""Of transformers' LlamaConfig, which a drafter's config falls back to in every engine that reads it so."""

_PLAIN: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "quantization_config": (None,),
    "compression_config": (None,),
    "use_sliding_window": (None, False),
    "is_causal": (None, True),
    "logit_scale": (None, 1, 1.0),
}
"""Fields that would change the maths, and the values that do not."""

Layer = Callable[[str], str]
"""Canonical name of a layer tensor → its name in the file."""


def refuse_other_maths(config: Fields) -> None:
    """Raises DrafterError for what the one EAGLE-3 layer here does not compute."""
    for name, allowed in _PLAIN.items():
        if (value := config.get(name)) not in allowed:
            raise DrafterError(f"{name} is {value!r}; drafters are served with {name} {allowed[-1]!r} or absent")
    if "sliding_attention" in (kinds := config.get("layer_types") or []):
        raise DrafterError(f"layer_types is {kinds!r}; drafters are served with full attention only")


def read_shape(config: Fields, tensors: Mapping[str, Tensor], layer: Layer) -> LayerShape:
    """Sizes of the layer.

    Args:
        config: the fields that describe the layer (speculators nests them).
        tensors: of the file.
        layer: how its layer tensors are named.

    Raises:
        CheckpointError: a field is missing, or config and tensors disagree.
    """
    hidden = _agreed(config, "hidden_size", tensors, "norm.weight")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    qwen3 = config.get("model_type") == "qwen3"
    head_dim = config.integer("head_dim", 128 if qwen3 else hidden // num_heads, minimum=2)
    if num_heads % num_kv_heads or head_dim % 2:
        raise DrafterError(
            f"{num_heads} query heads, {num_kv_heads} key heads of {head_dim}: key heads must divide query heads, and "
            "head_dim must be even"
        )
    _check_heads(tensors, layer("self_attn.q_proj.weight"), num_heads, head_dim)
    _check_heads(tensors, layer("self_attn.k_proj.weight"), num_kv_heads, head_dim)
    shape = LayerShape(
        hidden_size=hidden,
        intermediate_size=_agreed(config, "intermediate_size", tensors, layer("mlp.gate_proj.weight")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        qkv_bias=layer("self_attn.q_proj.bias") in tensors,
        output_bias=layer("self_attn.o_proj.bias") in tensors,
        mlp_bias=layer("mlp.gate_proj.bias") in tensors,
        fc_bias="fc.bias" in tensors,
        qk_norm=layer("self_attn.q_norm.weight") in tensors,
    )
    if qwen3 and not shape.qk_norm:
        raise DrafterError(f"model_type is qwen3, but there is no {layer('self_attn.q_norm.weight')}; fetch it again")
    return shape


def read_latent_shape(config: Fields, tensors: Mapping[str, Tensor], layer: Layer) -> LayerShape:
    """Sizes of a layer with DeepSeek-V3's attention and a plain MLP; else as `read_shape`."""
    num_heads = config.integer("num_attention_heads")
    return LayerShape(
        hidden_size=_agreed(config, "hidden_size", tensors, "norm.weight"),
        intermediate_size=_agreed(config, "intermediate_size", tensors, layer("mlp.gate_proj.weight")),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=turned_dim(config),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        qkv_bias=layer("self_attn.kv_a_proj_with_mqa.bias") in tensors,
        output_bias=layer("self_attn.o_proj.bias") in tensors,
        mlp_bias=layer("mlp.gate_proj.bias") in tensors,
        fc_bias="fc.bias" in tensors,
        latent=read_latent(config, "deepseek_v3", num_heads),
    )


def _check_heads(tensors: Mapping[str, Tensor], name: str, num_heads: int, head_dim: int) -> None:
    if num_rows(tensors, name) != num_heads * head_dim:
        raise DrafterError(
            f"the config has {num_heads} heads of {head_dim} elements, but {name} has {num_rows(tensors, name)} rows; "
            "fetch both again"
        )


def bias_notes(config: Fields, shape: LayerShape) -> tuple[str, ...]:
    """SpecForge's layer has no biases whatever its config, copied from the target's, says."""
    absent = (
        ("attention_bias", config.get("attention_bias"), shape.qkv_bias),
        ("mlp_bias", config.get("mlp_bias"), shape.mlp_bias),
    )
    note = "{} is true but the file holds no such bias: none is added"
    return tuple(note.format(name) for name, on, has in absent if on and not has)


def _agreed(config: Fields, field: str, tensors: Mapping[str, Tensor], name: str) -> int:
    """A size that a field and a tensor both tell."""
    found = num_rows(tensors, name)
    told = config.integer(field, found)
    if told != found:
        raise DrafterError(f"{field} is {told}, but {name} has shape {list(tensors[name].shape)}; fetch both again")
    return told


def num_rows(tensors: Mapping[str, Tensor], name: str) -> int:
    """First size of a tensor, or DrafterError if it is missing or empty."""
    if name not in tensors:
        raise DrafterError(f"it lacks {name}; it is incomplete, or no EAGLE-3 drafter")
    shape = list(tensors[name].shape)
    if not shape or 0 in shape:
        raise DrafterError(f"{name} has shape {shape}; fetch it again")
    return int(shape[0])


def count_taps(tensors: Mapping[str, Tensor], hidden: int, target_hidden: int, told: int | None) -> int | None:
    """How many taps `fc` [H, A·Ht] joins; None without `fc`, when the one tap must be as wide as the drafter.

    Args:
        tensors: of the file.
        hidden, target_hidden: H, Ht.
        told: the config's target_hidden_size.

    Raises:
        DrafterError: its shape fits neither the drafter nor the target.
    """
    if told is not None and told != target_hidden:
        raise DrafterError(
            f"target_hidden_size is {told}, the target's hidden size is {target_hidden}: the drafter was made for "
            "another target"
        )
    if "fc.weight" not in tensors:
        if hidden != target_hidden:
            raise DrafterError(f"it has no fc.weight, and its width {hidden} is not the target's, {target_hidden}")
        return None
    shape = list(tensors["fc.weight"].shape)
    if len(shape) != 2 or shape[0] != hidden:
        raise DrafterError(f"fc.weight has shape {shape}; its first size must be hidden_size, {hidden}")
    if shape[1] == 0 or shape[1] % target_hidden:
        raise DrafterError(
            f"fc.weight takes {shape[1]} features, which is no multiple of the target's hidden size {target_hidden}: "
            "the drafter was made for another target"
        )
    return shape[1] // target_hidden


def read_fusion_norm(config: Fields, tensors: Mapping[str, Tensor]) -> FusionNorm:
    """Which norm comes before `fc`; flags and tensors must not contradict each other.

    Raises:
        DrafterError: they do, or both norms are there.
    """
    kinds: tuple[tuple[str, FusionNorm, str], ...] = (
        ("norm_before_fc", "whole", "input_norm.weight"),
        ("fc_norm", "per_tap", "fc_norm.0.weight"),
    )
    found: list[FusionNorm] = []
    for flag, kind, name in kinds:
        told, held = config.get(flag), name in tensors
        if told is not None and bool(told) != held:
            raise DrafterError(f"{flag} is {told!r}, but {name} is {'there' if held else 'missing'}; fetch it again")
        if held:
            found.append(kind)
    if len(found) == 2:
        raise DrafterError("it has both input_norm and fc_norm; only one of the two norms before fc is served")
    return found[0] if found else "none"


def read_max_positions(config: Fields) -> tuple[int, str]:
    """The drafter's own position limit and where it came from."""
    if config.get("max_position_embeddings") is None:
        return DEFAULT_MAX_POSITIONS, "its config gives none, so transformers' default"
    return config.integer("max_position_embeddings"), "max_position_embeddings"
