"""A source becomes a target that runs, with what the checkpoint brought besides weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch

from models.checkpoints import make_checkpoint
from outpace.errors import CheckpointError
from outpace.models.registry import describe_target, load_target
from outpace.models.source import locate


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "mistral", sliding_window=16)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "x.Y"}}))
    loaded = load_target(locate(str(tmp_path)), dtype=torch.bfloat16, device="cpu")
    assert loaded.tokenizer is None
    assert loaded.config is loaded.model.config
    assert loaded.config.windows == (16,) * 4
    assert loaded.source.name == str(tmp_path)
    assert loaded.notes[1:] == ("auto_map is ignored: code that a checkpoint brings is never run",)
    assert torch.equal(loaded.model.norm.weight, reference.model.norm.weight.bfloat16())


@pytest.mark.parametrize(("named", "ends"), [(None, (1,)), (2, (2, 1))])
def test_one_answer_to_what_ends_an_answer(named: int | None, ends: tuple[int, ...], tmp_path: Path) -> None:
    """The engine stops where `inspect` says, and at the tokenizer's end even if no config names one."""
    make_checkpoint(tmp_path, "llama", eos_token_id=named)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "</s>": 1}, []))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    loaded = load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu")
    described = describe_target(locate(str(tmp_path)))
    assert loaded.config == loaded.model.config == described.config
    assert loaded.config.eos_token_ids == ends
    assert "1 (the tokenizer)" in loaded.notes[0]
    assert loaded.notes == described.notes


def test_a_directory_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu")
