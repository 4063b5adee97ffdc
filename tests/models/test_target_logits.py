"""Targets against transformers' own classes: logits of ragged batches, tapped features, packing, chunks, dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.checkpoints import make_checkpoint, read_reference
from models.dense_attend import DenseAttend
from outpace.models.hf.config import read_target
from outpace.models.hf.weights import read_safetensors
from outpace.models.target import Target

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MIXED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 20}),
    "llama one head each": ("llama", {"num_key_value_heads": 4}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn betas": (
        "llama",
        {"rope_parameters": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.7, "truncate": False}},
    ),
    "llama yarn mscale": ("llama", {"rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}}),
    "mistral full": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 7}),
    "mistral head_dim": ("mistral", {"head_dim": 32, "sliding_window": 11}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}),
    "qwen2 layer types": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "layer_types": MIXED}),
    "qwen2 yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3 bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2 groups": ("deepseek_v2", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7}),
    "deepseek_v2 lite": ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3 halves": ("deepseek_v3", {"rope_interleave": False, "norm_topk_prob": False}),
    "deepseek_v3 one group": ("deepseek_v3", {"n_group": 1, "topk_group": 1, "n_shared_experts": 2}),
    "deepseek_v3 yarn": (
        "deepseek_v3",
        {"rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}, "q_lora_rank": None},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral window": ("mixtral", {"sliding_window": 7, "num_experts_per_tok": 1}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe normalised": ("qwen3_moe", {"norm_topk_prob": True, "attention_bias": True}),
    "qwen3_moe some layers": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "qwen3_moe window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5}),
    "qwen3 windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
}

LENGTHS = (1, 5, 17, 40, 64)
TAPS = (3, 0, 2)
TOLERANCE = 1e-4


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Target:
    config, _ = read_target(directory)
    target = Target(config, dtype=dtype)
    target.load(read_safetensors(directory))
    return target


def ragged(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Rows of `LENGTHS` tokens, padded on the right with token 0; causal attention keeps padding out of sight."""
    longest = max(LENGTHS)
    tokens_BS = torch.randint(0, vocab_size, (len(LENGTHS), longest))
    for row, length in enumerate(LENGTHS):
        tokens_BS[row, length:] = 0
    return tokens_BS, torch.arange(longest).expand(len(LENGTHS), -1)


@torch.inference_mode()
def assert_equal_to_transformers(target: Target, reference: PreTrainedModel) -> None:
    tokens_BS, positions_BS = ragged(target.config.vocab_size)
    hidden_BSH, features_BSF = target(tokens_BS, positions_BS, DenseAttend(target.config.windows), TAPS)
    logits_BSV = target.logits(hidden_BSH)
    assert features_BSF is not None
    for row, length in enumerate(LENGTHS):
        expected = reference(tokens_BS[row : row + 1, :length], output_hidden_states=True)
        assert expected.logits.std() > 0.5
        torch.testing.assert_close(logits_BSV[row, :length], expected.logits[0], atol=TOLERANCE, rtol=0)
        tapped = torch.cat([expected.hidden_states[boundary][0] for boundary in TAPS], -1)
        torch.testing.assert_close(features_BSF[row, :length], tapped, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_features_of_ragged_rows(case: str, tmp_path: Path) -> None:
    architecture, overrides = CASES[case]
    reference = make_checkpoint(tmp_path, architecture, **overrides)
    target = load(tmp_path)
    assert_equal_to_transformers(target, reference)
    target.pack()
    assert_equal_to_transformers(target, reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_in_half_precision_and_sharded(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "qwen2", dtype=dtype, shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equal_to_transformers(load(tmp_path), reference)


@torch.inference_mode()
def test_last_boundary_is_the_last_layers_output(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "llama")
    outputs: list[Tensor] = []
    reference.model.layers[-1].register_forward_hook(lambda *call: outputs.append(call[2]))
    target = load(tmp_path)
    tokens_BS, positions_BS = torch.randint(0, 131, (2, 9)), torch.arange(9).expand(2, -1)
    reference(tokens_BS)
    _, features_BSF = target(tokens_BS, positions_BS, DenseAttend(target.config.windows), (4,))
    torch.testing.assert_close(features_BSF, outputs[0], atol=TOLERANCE, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("case", ["llama3", "mistral window"])
def test_chunks_give_what_one_forward_gives(case: str, tmp_path: Path) -> None:
    architecture, overrides = CASES[case]
    reference = make_checkpoint(tmp_path, architecture, **overrides)
    target = load(tmp_path)
    tokens_BS, positions_BS = torch.randint(0, 131, (2, 30)), torch.arange(30).expand(2, -1)
    attend = DenseAttend(target.config.windows)
    chunks = [slice(0, 13), slice(13, 14), slice(14, 30)]
    hidden = [target(tokens_BS[:, chunk], positions_BS[:, chunk], attend)[0] for chunk in chunks]
    logits_BSV = target.logits(torch.cat(hidden, 1))
    torch.testing.assert_close(logits_BSV, reference(tokens_BS).logits, atol=TOLERANCE, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("packed", [False, True])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(packed: bool, tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "qwen3", dtype=torch.bfloat16)
    target = load(tmp_path, torch.bfloat16)
    if packed:
        target.pack()
    tokens_BS, positions_BS = torch.randint(0, 131, (3, 32)), torch.arange(32).expand(3, -1)
    exact = reference(tokens_BS).logits
    hidden_BSH, _ = target(tokens_BS, positions_BS, DenseAttend(target.config.windows))
    logits_BSV = target.logits(hidden_BSH[:, -3:])
    assert logits_BSV.dtype is torch.bfloat16
    theirs = (read_reference(tmp_path, torch.bfloat16)(tokens_BS).logits.float() - exact)[:, -3:].std()
    ours = (logits_BSV.float() - exact[:, -3:]).std()
    assert ours < 1.5 * theirs


def test_a_target_is_frozen_and_its_frequencies_survive_a_cast(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", rope_parameters=LLAMA3)
    target = load(tmp_path)
    before = target.rotary.inv_freq.clone()
    target.to(torch.bfloat16)
    assert target.embed.weight.dtype is torch.bfloat16
    assert torch.equal(target.rotary.inv_freq, before)
    assert not any(parameter.requires_grad for parameter in target.parameters())
