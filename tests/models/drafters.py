"""Small random drafter checkpoints in every dialect, for tests that need a drafter on disk.

The field and tensor names are those that each trainer writes; `DIALECTS` says in what they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.target import Target

Settings = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """What one trainer writes."""

    prefix: str = "midlayer."
    architecture: str = "LlamaForCausalLMEagle3"
    eagle_config: Mapping[str, Any] | None = None
    ids: str | None = None
    """Field of the tap ids; "eagle_config" is nested."""
    ids_name_outputs: bool = True
    file: str = "model.safetensors"
    has_t2d: bool = True
    reduced: bool = True
    flags: Mapping[str, Any] | None = None
    nested: bool = False
    latent: bool = False
    """DeepSeek-V3's attention."""


_MODELOPT = {"use_aux_hidden_state": True, "use_last_layernorm": True, "parallel_draft_step": 1}
_IDS = "eagle_aux_hidden_state_layer_ids"

DIALECTS = {
    "safeailab": Dialect(architecture="LlamaForCausalLM", file="pytorch_model.bin"),
    "safeailab_safetensors": Dialect(architecture="LlamaForCausalLM"),
    "specforge": Dialect(eagle_config={"use_aux_hidden_state": True}, ids="eagle_config"),
    "specforge_plain": Dialect(),
    "speculators": Dialect(
        prefix="layers.0.", architecture="Eagle3Speculator", ids=_IDS, ids_name_outputs=False, nested=True
    ),
    "modelopt_old": Dialect(eagle_config=_MODELOPT, has_t2d=False),
    "modelopt_new": Dialect(prefix="layers.0.", eagle_config=_MODELOPT, ids="eagle_config", has_t2d=False),
    "lightseek": Dialect(reduced=False),
    "mla": Dialect(architecture="Eagle3DeepseekV2ForCausalLM", reduced=False, latent=True),
    "mla_reduced": Dialect(
        prefix="layers.0.",
        architecture="Eagle3DeepseekV3ForCausalLM",
        eagle_config={"use_aux_hidden_state": True},
        ids="eagle_config",
        latent=True,
    ),
    "angelslim": Dialect(architecture="Eagle3LlamaForCausalLM", ids="aux_hidden_states_layer_ids"),
    "eagle31": Dialect(eagle_config={}, ids="eagle_config", flags={"fc_norm": True, "norm_output": True}),
    "norm_before_fc": Dialect(eagle_config={}, ids="eagle_config", flags={"norm_before_fc": True}),
}


@dataclass(frozen=True)
class MadeDrafter:
    """What was written: every tensor by its name in the file, and config.json."""

    directory: Path
    prefix: str
    config: Settings
    tensors: dict[str, Tensor]

    def rewrite(self, tensors: Mapping[str, Tensor | None] | None = None, **fields: Any) -> MadeDrafter:
        """Writes it again with other tensors and fields (None removes)."""
        merged = {name: tensor for name, tensor in (self.tensors | dict(tensors or {})).items() if tensor is not None}
        config = {name: value for name, value in (self.config | fields).items() if value is not None}
        is_pickle = (self.directory / "pytorch_model.bin").exists()
        _write(self.directory, config, merged, "pytorch_model.bin" if is_pickle else "model.safetensors")
        return MadeDrafter(self.directory, self.prefix, config, merged)


LATENT: Settings = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
}
"""Fields of a layer with latent attention, of four heads."""


def small_target_config(**changes: Any) -> TargetConfig:
    """An eight-layer Llama, deep enough for EAGLE-3's default taps to differ."""
    settings: Settings = {
        "architecture": "llama",
        "vocab_size": 131,
        "hidden_size": 48,
        "num_layers": 8,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 12,
        "intermediate_size": 80,
        "norm_eps": 1e-5,
        "rope": RopeConfig(),
        "max_positions": 256,
    }
    settings |= changes
    return TargetConfig(windows=(None,) * settings["num_layers"], **settings)


def small_target(config: TargetConfig | None = None) -> Target:
    """A random target of that shape."""
    target = Target(config or small_target_config())
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(0.0, 0.2)
    return target


def make_drafter(
    directory: Path,
    dialect: str,
    target: TargetConfig,
    *,
    draft_vocab_size: int = 40,
    boundaries: tuple[int, ...] = (2, 4, 5),
    own_embedding: bool = False,
    **overrides: Any,
) -> MadeDrafter:
    """Writes a random drafter.

    Args:
        directory: is made; gets config.json and the weights.
        dialect: a key of `DIALECTS`.
        target: what it drafts for.
        draft_vocab_size: ignored by dialects of the whole vocabulary.
        boundaries: taps, ascending; written only where the dialect names them.
        own_embedding: write embed_tokens.weight, with values that are not the target's.
        overrides: fields that describe the layer, such as hidden_size; None removes one.
    """
    kind = DIALECTS[dialect]
    layer: Settings = {
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": 56,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "rope_theta": 5000.0,
        "vocab_size": target.vocab_size,
    }
    layer |= (LATENT if kind.latent else {}) | overrides
    num_drafts = draft_vocab_size if kind.reduced else target.vocab_size
    tensors = _weights(kind, layer, target, num_drafts, len(boundaries), own_embedding)
    config = _config(kind, layer, target, num_drafts, boundaries)
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory, config, tensors, kind.file)
    return MadeDrafter(directory, kind.prefix, config, tensors)


def _weights(
    kind: Dialect, layer: Settings, target: TargetConfig, num_drafts: int, num_taps: int, own_embedding: bool
) -> dict[str, Tensor]:
    hidden, inner = layer["hidden_size"], layer["intermediate_size"]
    features, flags = num_taps * target.hidden_size, kind.flags or {}
    matrices = {
        "fc.weight": (hidden, features),
        "lm_head.weight": (num_drafts, hidden),
        **{f"{kind.prefix}self_attn.{name}.weight": shape for name, shape in _attention(kind, layer).items()},
        f"{kind.prefix}mlp.gate_proj.weight": (inner, hidden),
        f"{kind.prefix}mlp.up_proj.weight": (inner, hidden),
        f"{kind.prefix}mlp.down_proj.weight": (hidden, inner),
    }
    if own_embedding:
        matrices["embed_tokens.weight"] = (target.vocab_size, hidden)
    norms = {"norm.weight": hidden}
    norms |= {f"{kind.prefix}{name}.weight": hidden for name in ("input_layernorm", "hidden_norm")}
    norms |= {f"{kind.prefix}post_attention_layernorm.weight": hidden}
    if kind.latent:
        norms |= {f"{kind.prefix}self_attn.kv_a_layernorm.weight": layer["kv_lora_rank"]}
        if layer["q_lora_rank"] is not None:
            norms |= {f"{kind.prefix}self_attn.q_a_layernorm.weight": layer["q_lora_rank"]}
    if flags.get("fc_norm"):
        norms |= {f"fc_norm.{i}.weight": target.hidden_size for i in range(num_taps)}
    if flags.get("norm_before_fc"):
        norms |= {"input_norm.weight": features}
    tensors = {name: torch.randn(shape) * 1.5 / shape[1] ** 0.5 for name, shape in matrices.items()}
    tensors |= {name: 1.0 + 0.3 * torch.randn(size) for name, size in norms.items()}
    return tensors | (vocabulary_maps(kind, target.vocab_size, num_drafts) if kind.reduced else {})


def _attention(kind: Dialect, layer: Settings) -> dict[str, tuple[int, int]]:
    """Shapes of the attention's products."""
    hidden, heads = layer["hidden_size"], layer["num_attention_heads"]
    if not kind.latent:
        dim = layer["head_dim"]
        queries, keys = heads * dim, layer["num_key_value_heads"] * dim
        shapes = {"q_proj": (queries, 2 * hidden), "k_proj": (keys, 2 * hidden), "v_proj": (keys, 2 * hidden)}
        return shapes | {"o_proj": (hidden, queries)}
    rank, turned, value = layer["kv_lora_rank"], layer["qk_rope_head_dim"], layer["v_head_dim"]
    plain, q_rank = layer["qk_nope_head_dim"], layer["q_lora_rank"]
    queries = heads * (plain + turned)
    shapes = {"q_a_proj": (q_rank, 2 * hidden), "q_b_proj": (queries, q_rank)}
    if q_rank is None:
        shapes = {"q_proj": (queries, 2 * hidden)}
    return shapes | {
        "kv_a_proj_with_mqa": (rank + turned, 2 * hidden),
        "kv_b_proj": (heads * (plain + value), rank),
        "o_proj": (hidden, heads * value),
    }


def vocabulary_maps(kind: Dialect, vocab_size: int, num_drafts: int) -> dict[str, Tensor]:
    """d2t as offsets of random ascending ids, and t2d where the dialect writes it."""
    ids = torch.randperm(vocab_size)[:num_drafts].sort().values
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    maps = {"d2t": ids - torch.arange(num_drafts)}
    return maps | ({"t2d": t2d} if kind.has_t2d else {})


def _config(
    kind: Dialect, layer: Settings, target: TargetConfig, num_drafts: int, boundaries: tuple[int, ...]
) -> Settings:
    config: Settings = {"architectures": [kind.architecture], **(kind.flags or {})}
    if kind.nested:
        config |= {"transformer_layer_config": layer, "speculators_model_type": "eagle3", "norm_before_residual": False}
        verifier = {"name_or_path": "somewhere/target", "architectures": ["LlamaForCausalLM"]}
        config |= {"speculators_config": {"algorithm": "eagle3", "verifier": verifier}}
    else:
        config |= {name: value for name, value in layer.items() if value is not None}
    if kind.reduced:
        config["draft_vocab_size"] = num_drafts
    if layer["hidden_size"] != target.hidden_size:
        config["target_hidden_size"] = target.hidden_size
    if kind.eagle_config is not None:
        config["eagle_config"] = dict(kind.eagle_config)
    ids = [boundary - kind.ids_name_outputs for boundary in boundaries]
    if kind.ids == "eagle_config":
        config["eagle_config"][_IDS] = ids
    elif kind.ids is not None:
        config[kind.ids] = ids
    return config


def _write(directory: Path, config: Settings, tensors: dict[str, Tensor], file: str) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if file.endswith(".bin"):
        torch.save(contiguous, directory / file)
    else:
        save_file(contiguous, directory / file)
