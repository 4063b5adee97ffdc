"""DeepSeek's and Kimi's checkpoints: other names for the same, wrappers, further layers, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import make_checkpoint, make_kimi
from models.kimi_files import write_kimi
from models.test_target_logits import assert_equal_to_transformers
from outpace.errors import CheckpointError
from outpace.models.hf.config import read_target
from outpace.models.hf.wrapped import read_tensors
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.models.target import Target


def change_config(directory: Path, changes: dict[str, Any]) -> dict[str, Any]:
    path = directory / "config.json"
    config: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(config))
    return config


def load(directory: Path) -> tuple[Target, tuple[str, ...]]:
    config, notes = read_target(directory)
    target = Target(config)
    target.load(read_tensors(directory))
    return target, notes


def test_kimi_k2_is_deepseek_v3_and_its_code_is_not_run(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "deepseek_v3", n_group=1, topk_group=1)
    change_config(tmp_path, {"model_type": "kimi_k2", "auto_map": {"AutoModel": "modeling_deepseek.DeepseekV3Model"}})
    (tmp_path / "modeling_deepseek.py").write_text("raise SystemExit('run')")
    target, notes = load(tmp_path)
    assert target.config.architecture == "deepseek_v3"
    assert any("auto_map is ignored" in note for note in notes)
    assert_equal_to_transformers(target, reference)


def test_a_checkpoint_as_kimi_k2_publishes_it(tmp_path: Path) -> None:
    """Its tokenizer's and its config's Python is told of, and not run; YaRN and routing are transformers'."""
    reference = make_kimi(tmp_path)
    write_kimi(tmp_path)
    loaded = load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu")
    assert not (tmp_path / "it-ran").exists()
    told = [note for note in loaded.notes if "auto_map is ignored" in note]
    assert len(told) == 2
    assert told[1].startswith("tokenizer_config.json")
    assert loaded.tokenizer is not None
    assert loaded.config.mixture is not None
    assert loaded.config.latent is not None
    assert loaded.config.latent.scale == pytest.approx(20**-0.5 * (0.1 * math.log(32.0) + 1.0) ** 2)
    assert any(bool(layer.mlp.correction_E.any()) for layer in list(loaded.model.layers)[1:])
    assert_equal_to_transformers(loaded.model, reference)


def test_the_language_model_of_kimi_k25(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "deepseek_v3")
    config = change_config(tmp_path, {})
    outer = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": config}
    outer |= {"auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    tensors |= {"vision_tower.patch_embed.proj.weight": torch.zeros(3), "mm_projector.proj.0.bias": torch.zeros(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    target, notes = load(tmp_path)
    assert any("the language model alone is served" in note for note in notes)
    assert any("auto_map is ignored" in note for note in notes)
    assert_equal_to_transformers(target, reference)
    save_file(tensors | {"audio_tower.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"audio_tower\.weight"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(outer | {"text_config": None}))
    with pytest.raises(CheckpointError, match="text_config is None"):
        load(tmp_path)


def test_layers_that_predict_further_tokens_are_not_loaded(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "deepseek_v3")
    tensors = load_file(tmp_path / "model.safetensors")
    further = {"model.layers.4.eh_proj.weight": torch.zeros(3), "model.layers.4.enorm.weight": torch.zeros(3)}
    save_file(tensors | further, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="eh_proj"):
        load(tmp_path)
    change_config(tmp_path, {"num_nextn_predict_layers": 1})
    assert_equal_to_transformers(load(tmp_path)[0], reference)


@pytest.mark.parametrize(
    ("architecture", "fields", "named"),
    [
        ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; it must be even"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("deepseek_v3", {"n_group": 3}, "n_group is 3; it must divide the 8 experts"),
        ("deepseek_v3", {"topk_group": 5}, "topk_group is 5"),
        ("deepseek_v3", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5; 2 of 4 groups hold 4"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        ("deepseek_v2", {"n_routed_experts": None}, "n_routed_experts is missing"),
    ],
)
def test_what_cannot_be_served_is_named(architecture: str, fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, architecture)
    change_config(tmp_path, fields)
    with pytest.raises(CheckpointError, match=named):
        read_target(tmp_path)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "deepseek_v3")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.mlp\.experts\.5\.up_proj\.weight"):
        load(tmp_path)
