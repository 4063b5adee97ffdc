"""Small random checkpoints, written by transformers itself, for tests that need a model on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from models.kimi_files import POISON

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "mixtral": transformers.MixtralConfig,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "deepseek_v2": transformers.DeepseekV2Config,
    "deepseek_v3": transformers.DeepseekV3Config,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "deepseek_v2": LATENT | {"n_shared_experts": 2},
    "deepseek_v3": LATENT | {"num_mtp_layers": 0},
    "qwen3_moe": {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
}

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_checkpoint(
    directory: Path,
    architecture: str,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: int | str = "1GB",
    **overrides: Any,
) -> PreTrainedModel:
    """Writes a random checkpoint and returns the transformers model read from it, in float32 and evaluating.

    Args:
        directory: is made; gets config.json, generation_config.json and safetensors.
        architecture: one of `CONFIGS`.
        dtype: what the weights are stored in.
        shard_size: largest shard; a small one gives an index and several files.
        overrides: fields of the transformers configuration, over `SIZES`.
    """
    sizes = SIZES | OWN_SIZES.get(architecture, {})
    config = CONFIGS[architecture](**{**sizes, **overrides})
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    return read_reference(directory)


KIMI: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 24,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
}
"""Kimi-K2's values, its sizes scaled down: a sixteenth of the experts, half as many of them a token."""
KIMI_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def make_kimi(directory: Path) -> PreTrainedModel:
    """As `make_checkpoint`, with the config.json that Kimi-K2 publishes, which names Python that must not run."""
    yarn = {name: value for name, value in KIMI_YARN.items() if name != "type"}
    rope = {"rope_type": "yarn", "rope_theta": 50000.0, **yarn}
    reference = make_checkpoint(directory, "deepseek_v3", rope_parameters=rope, **KIMI)
    config = json.loads((directory / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"model_type": "kimi_k2", "rope_theta": 50000.0, "rope_scaling": KIMI_YARN, "topk_method": "noaux_tc"}
    config |= {"scoring_func": "sigmoid", "moe_layer_freq": 1, "ep_size": 1, "seq_aux": True, "aux_loss_alpha": 0.001}
    config |= {"num_nextn_predict_layers": 0, "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "modeling_deepseek.py").write_text(POISON)
    return reference


def read_reference(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """What transformers makes of a checkpoint. (Casting a model would round its rotary frequencies too.)"""
    kind = transformers.AutoModelForCausalLM
    model: PreTrainedModel = kind.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    model.eval()
    return model


def randomise(model: torch.nn.Module) -> None:
    """Weights with which logits spread over several units, biases and norms that cannot be mistaken for none."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.normal_(0.0, 0.3)
