from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from outpace.errors import CheckpointError
from outpace.lab.anatomy.target import target_anatomy
from outpace.models.source import locate

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, int]:
    """A small Qwen2 of transformers, and how many parameters it has."""
    config = transformers.Qwen2Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.Qwen2ForCausalLM(config)
    model.save_pretrained(tmp_path)
    return tmp_path, sum(parameter.numel() for parameter in model.parameters())


def test_a_directory(checkpoint: tuple[Path, int]) -> None:
    path, num_parameters = checkpoint
    anatomy = target_anatomy(locate(str(path)))
    assert anatomy.num_parameters == num_parameters
    assert anatomy.bytes_on_disk == (path / "model.safetensors").stat().st_size
    found = json.loads(json.dumps(anatomy.as_dict()))
    assert found["config"]["architecture"] == "qwen2"
    assert found["kv_bytes_per_token"] == {"bfloat16": 2 * 2 * 3 * 2 * 8, "float32": 4 * 2 * 3 * 2 * 8}
    assert found["tokenizer"] is None
    text = "\n".join(anatomy.lines())
    assert "qwen2: 3 layers, hidden 32" in text
    assert "give prompts as token ids" in text


def test_broken_weights_are_found_without_loading_them(checkpoint: tuple[Path, int]) -> None:
    path, _ = checkpoint
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        target_anatomy(locate(str(path)))


@pytest.mark.real_model
def test_the_default_model() -> None:
    anatomy = target_anatomy(locate("smollm2"))
    assert anatomy.num_parameters == 134_515_008
    assert anatomy.kv_elements_per_token == 2 * 30 * 3 * 64
    assert anatomy.tokenizer == {"vocab_size": 49152, "has_chat_template": True}
    assert anatomy.config.eos_token_ids == (2,)
    assert anatomy.notes == ("answers end at token 2 (tokenizer.ggml.eos_token_id)",)
