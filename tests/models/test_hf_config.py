"""config.json in the wild: both spellings of rope, defaults, and everything that must be refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from models.checkpoints import CONFIGS, SIZES, make_checkpoint
from outpace.errors import CheckpointError
from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.hf.config import read_target
from outpace.models.rope import attention_scale, inverse_frequencies

LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, **SIZES}
QWEN2 = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
MISTRAL = LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> TargetConfig:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_target(directory)[0]


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({}, RopeConfig()),
        ({"rope_theta": 5e5}, RopeConfig(theta=5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(theta=5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, RopeConfig(theta=7e4)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeConfig(kind="linear", factor=2.0)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_positions=64),
        ),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "finetuned": True}},
            RopeConfig(theta=1e6, kind="yarn", factor=4.0, original_max_positions=256),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": None}, "original_max_position_embeddings": 32},
            RopeConfig(kind="yarn", factor=8.0, original_max_positions=32),
        ),
    ],
)
def test_both_spellings_of_rope(fields: dict[str, Any], rope: RopeConfig, tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA | fields).rope == rope


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 2.5},
        {"rope_type": "llama3", **LLAMA3},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16, "attention_factor": 1.25},
        {"type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4096, "truncate": False},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7},
    ],
)
@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_frequencies_are_transformers_own(scaling: dict[str, Any], theta: float, tmp_path: Path) -> None:
    rope = read(tmp_path, LLAMA | {"rope_theta": theta, "rope_scaling": scaling, "head_dim": 64}).rope
    config = CONFIGS["llama"](**SIZES, head_dim=64, rope_parameters={"rope_theta": theta, **scaling})
    expected, scale = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu")
    torch.testing.assert_close(inverse_frequencies(rope, 64), expected, rtol=1e-6, atol=0)
    assert attention_scale(rope) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LLAMA, (None,) * 4),
        (MISTRAL, (4096,) * 4),
        (MISTRAL | {"sliding_window": None}, (None,) * 4),
        (MISTRAL | {"sliding_window": 16}, (16,) * 4),
        (QWEN2 | {"sliding_window": 16, "max_window_layers": 1}, (None,) * 4),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}, (None, None, None, 16)),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (None,) * 4),
    ],
)
def test_windows(config: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    assert read(tmp_path, config).windows == windows


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        ([5, 6], None, None, (5, 6)),
        (2, [7, 2, 7], None, (7, 2)),
        (2, 3, 4, (3, 2, 4)),
        (None, None, 4, (4,)),
        (None, None, None, ()),
        (131, [9, 500], 130, (9, 130)),
    ],
    ids=["list", "generation first", "all three", "only the tokenizer", "none", "beyond the vocabulary"],
)
def test_every_token_that_is_named_ends_an_answer(
    config: Any, generation: Any, tokenizer: int | None, ends: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert read_target(tmp_path, tokenizer_eos=tokenizer)[0].eos_token_ids == ends


def test_what_ends_an_answer_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    _, (note,) = read_target(tmp_path, tokenizer_eos=4)
    assert (
        note
        == "answers end at token 7 (generation_config.json); 2 (generation_config.json, config.json); 4 (the tokenizer)"
    )
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": None}))
    _, (note,) = read_target(tmp_path)
    assert note.startswith("no token ends an answer")


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    config, notes = read_target(tmp_path)
    assert notes == ("answers end at token 2 (generation_config.json, config.json)",)
    assert config == TargetConfig(
        architecture="qwen3",
        vocab_size=131,
        hidden_size=48,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=80,
        norm_eps=1e-6,
        rope=RopeConfig(),
        max_positions=256,
        qk_norm=True,
        windows=(None, None, 8, 8),
        eos_token_ids=(2,),
    )


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    extra = {"auto_map": {"AutoModel": "modeling_x.X"}, "sliding_window": 4096, "unsloth_version": "1", "cheese": None}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | extra))
    _, notes = read_target(tmp_path)
    assert notes[1:] == (
        "auto_map is ignored: code that a checkpoint brings is never run",
        "not used, as in transformers' own class: sliding_window, unsloth_version",
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "gemma2"}, "model_type is 'gemma2'; served are llama, mistral"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "pass it as drafter"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "must be LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "bnb"}}, "quantization_config.*bnb.*before it was quantised"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not served; .*llama3"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention.*each layer type"),
        ({"rope_scaling": "yarn"}, "must be an object"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        (
            {"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_theta is 1; it must be a number above 1, ",
        ),
        ({"rope_scaling": {"type": "su", "long_factor": [1.0], "short_factor": [1.0]}}, "long_factor"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}}, "mrope_section"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number in 1 … 1024"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000"),
        ({"intermediate_size": 10**9}, "intermediate_size is 1000000000"),
        ({"num_attention_heads": 10**9}, "num_attention_heads is 1000000000"),
        ({"head_dim": 10**9}, "head_dim is 1000000000"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings is 1000"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide"),
        ({"head_dim": 13}, "head_dim must be even"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "multiple of num_attention_heads"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
    ],
)
def test_what_would_change_the_maths_is_refused(fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, LLAMA | fields)


QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


def test_experts_are_read(tmp_path: Path) -> None:
    given = {"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True}
    mixture = read(tmp_path, QWEN3_MOE | given).mixture
    assert mixture is not None
    assert (mixture.num_experts, mixture.num_chosen, mixture.intermediate_size) == (8, 2, 24)
    assert mixture.normalizes
    assert mixture.layers == tuple(layer == 1 for layer in range(QWEN3_MOE["num_hidden_layers"]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; there are 8 experts"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok"),
        ({"num_experts": 10**9}, "num_experts is 1000000000"),
        ({"num_experts": None}, "num_local_experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"mlp_only_layers": "1"}, "mlp_only_layers is '1'"),
        ({"n_routed_experts": 4}, "n_routed_experts is 4"),
    ],
)
def test_experts_that_cannot_be_served(fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, QWEN3_MOE | fields)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["full_attention"], "each of the 4 layers"),
        (["full_attention"] * 3 + ["linear_attention"], "linear_attention"),
        (["sliding_attention"] * 4, "window of None"),
    ],
)
def test_layer_types_that_cannot_be_served(kinds: list[str], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, QWEN2 | {"layer_types": kinds})


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "\xff"])
def test_a_config_that_is_not_one(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_target(tmp_path)


def test_a_config_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(CheckpointError, match=r"config\.json has 3221225472 bytes"):
        read_target(tmp_path)


def test_a_name_with_two_values_is_refused(tmp_path: Path) -> None:
    text = json.dumps(LLAMA)
    (tmp_path / "config.json").write_text(text[:-1] + ', "hidden_size": 48}')
    assert read_target(tmp_path)[0].hidden_size == 48
    (tmp_path / "config.json").write_text(text[:-1] + ', "hidden_size": 64}')
    with pytest.raises(CheckpointError, match=r"config\.json .*'hidden_size' comes twice, as 48 and as 64"):
        read_target(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is no regular file"):
        read_target(tmp_path)
