"""`outpace doctor MODEL` on the real small model, its drafter wired wrongly, and on a tiny random one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outpace.cli.main import main
from server.models import make_drafter, make_model


@pytest.mark.real_model
def test_wrong_taps_are_named_with_the_gain(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "smollm2", "--aux-boundaries", "5", "10", "20", "--num-prompts", "1", "--max-tokens", "48"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_question = {finding["question"]: finding for finding in found["findings"]}
    assert by_question["is the drafter wired right"]["answer"] in ("suspect", "no: wiring")
    wiring = by_question["which wiring measures best"]["numbers"]
    assert wiring["aux_boundaries"] == [2, 15, 27]
    assert wiring["best_accept_length"] > 1.3 * wiring["accept_length"]
    (advice,) = [each for each in found["advice"] if each["action"].startswith("wire the drafter otherwise")]
    assert "--aux-boundaries 2 15 27" in advice["arithmetic"]
    assert {"verify_ms", "draft_ms"} <= by_question["which part of the cycle costs it"]["numbers"].keys()


def test_a_random_drafter_is_not_called_well_wired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A drafter that knows nothing: no wiring helps, and speculation is said not to pay."""
    torch.manual_seed(0)
    model = make_model(tmp_path / "model")
    drafter = make_drafter(model, tmp_path / "drafter")
    words = ["doctor", str(model), "--drafter", str(drafter), "--dtype", "float32", "--max-tokens", "24"]
    assert main([*words, "--num-prompts", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    explained = next(each for each in found["findings"] if each["question"] == "do the phases explain the speed")
    numbers = explained["numbers"]
    assert 0.3 * numbers["cycle_ms"] < numbers["phases_ms"] < numbers["cycle_ms"], "of the cycles that were timed"
    assert found["machine"]["torch"] == torch.__version__
    wiring = next(each for each in found["findings"] if each["question"] == "which wiring measures best")
    assert wiring["answer"] == "the given one"
    wired = next(each for each in found["findings"] if each["question"] == "is the drafter wired right")
    assert wired["numbers"]["per_position"][0] < 0.4
