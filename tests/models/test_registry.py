"""A source becomes a target that runs, with what the checkpoint brought besides weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models.checkpoints import make_checkpoint
from outpace.errors import CheckpointError
from outpace.models.registry import load_target
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
    assert loaded.notes == ("auto_map is ignored: code that a checkpoint brings is never run",)
    assert torch.equal(loaded.model.norm.weight, reference.model.norm.weight.bfloat16())


def test_a_directory_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu")
