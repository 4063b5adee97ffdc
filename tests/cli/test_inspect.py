from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.tiny import tiny_target
from outpace.cli.main import main
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter, save_drafter


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A Llama of the same sizes as the tiny target."""
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    made = Drafter.create(tiny_target().model, draft_ids=torch.arange(3, 40))
    save_drafter(made, tmp_path / "drafter")
    return str(tmp_path / "drafter")


def test_a_target(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", model]) == 0
    assert "llama: 3 layers, hidden 32" in capsys.readouterr().out
    assert main(["inspect", model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "target"
    assert found["config"]["num_kv_heads"] == 2


def test_what_was_not_used_is_said(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(model, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"a_field_of_tomorrow": 7}))
    assert main(["inspect", model]) == 0
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("  note ") and "not used" in line
    ]
    assert "a_field_of_tomorrow" in line
    assert main(["inspect", model, "--json"]) == 0
    assert any("a_field_of_tomorrow" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_drafter(model: str, drafter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", drafter, "--target", model]) == 0
    assert "specforge dialect" in capsys.readouterr().out
    assert main(["inspect", drafter, "--target", model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "drafter"
    assert found["wiring"]["d2t"] == "offset"
    assert found["wiring"]["draft_vocab_size"] == 37
    own = sum(p.numel() for p in Drafter.create(tiny_target().model, draft_ids=torch.arange(3, 40)).parameters())
    assert found["num_parameters"] == own


def test_an_embedding_that_a_load_may_share_is_not_called_the_drafters_own(
    model: str, drafter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A load compares it with the target's; `inspect` does not, and says so."""
    weights = Path(drafter, "model.safetensors")
    tensors = load_file(weights)
    target = tiny_target().model
    save_file(tensors | {"embed_tokens.weight": target.embed.weight.clone()}, weights, metadata={"format": "pt"})
    assert load_drafter(drafter, target, dtype=torch.float32, device="cpu").wiring.embedding == "target"
    assert main(["inspect", drafter, "--target", model]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "embedding: " in line]
    assert "not compared with the target's" in line


def test_taps_can_be_overridden(model: str, drafter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", drafter, "--target", model, "--aux-boundaries", "0", "1", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wiring"]["aux_boundaries"] == [0, 1, 3]


def test_a_drafter_alone_asks_for_its_target(drafter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", drafter]) == 2
    assert "--target" in capsys.readouterr().err


def test_what_is_no_drafter_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", model, "--target", model]) == 2
    assert f"drafter {model}: it has 3 layers" in capsys.readouterr().err


def test_what_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "./nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
