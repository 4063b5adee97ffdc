from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.golden import check
from outpace.cli.main import main

CASE = "breakeven --decode-ms 12.1 --verify-ms 29.3 --accept-length 2.0"
CURVE = (
    "breakeven --decode-ms 4.1 --verify-ms 4.3 --draft-ms 1.2 --acceptance 0.8,0.7,0.6 "
    "--verify-ms-at 1=4.2,3=4.3 --wish-tok-s 450"
)
COSTS = [
    {"bucket": bucket, "k": k, "base_ms": base, "us_per_1k_context": 12.5}
    for bucket, k, base in (
        (1, 0, 4.1),
        (1, 3, 4.9),
        (1, 5, 5.4),
        (8, 0, 4.5),
        (8, 3, 9.5),
        (64, 0, 8.0),
        (64, 3, 30.0),
    )
]


def test_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASE.split()) == 0
    shown = capsys.readouterr().out
    check("breakeven.txt", shown)
    assert "break-even accept length     2.42" in shown
    assert any("150.0 tok/s" in line and "4.40" in line for line in shown.splitlines())


def test_the_case_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE.split(), "--wish-tok-s", "150", "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)
    check("breakeven.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found["break_even_accept_length"] == 2.421
    assert found["pays"] is False
    assert next(speed for speed in found["speeds"] if speed["tok_s"] == 150.0)["accept_length"] == 4.395


@pytest.mark.parametrize(("verify_ms", "pays"), [("10", True), ("12", True), ("12.1", False)])
def test_where_a_cycle_takes_no_more_than_a_plain_step_every_one_pays(
    verify_ms: str, pays: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below 1 there is no break-even to reach: no cycle brings less than a token."""
    words = f"breakeven --decode-ms 12 --verify-ms {verify_ms} --accept-length 1.5".split()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert ("brings one token at least, so every cycle pays; it brings 1.50" in shown) is pays
    (line,) = [line for line in shown.splitlines() if "break-even accept length" in line]
    assert line.endswith("every cycle pays") is pays
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["every_cycle_pays"] is pays


def test_a_wish_is_marked_and_k_limits_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE.split(), "--wish-tok-s", "120", "--k", "2"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "(wish)" in line]
    assert "3.52: above the 3 of k 2" in line


def test_the_best_k(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CURVE.split()) == 0
    check("breakeven-curve.txt", capsys.readouterr().out)


def test_a_cost_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"costs": COSTS}))
    assert main(["breakeven", "--costs", str(path), "--acceptance", "0.8,0.7,0.6,0.5,0.4"]) == 0
    check("breakeven-costs.txt", capsys.readouterr().out)
    assert main(["breakeven", "--costs", str(path), "--accept-length", "2.5", "--k", "3", "--json"]) == 0
    (heat,) = json.loads(capsys.readouterr().out)["heat"]
    assert heat["rows"] == ["1", "8", "64"]
    assert heat["notes"][0][0] == "k3"
    assert heat["notes"][2][0] == "k0"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("breakeven", "give --decode-ms and --verify-ms, or --costs FILE"),
        ("breakeven --decode-ms 0 --verify-ms 1 --accept-length 2", "decode-ms is 0; it must be above 0"),
        ("breakeven --decode-ms nan --verify-ms 1 --accept-length 2", "decode-ms is nan"),
        ("breakeven --decode-ms 1 --verify-ms 1 --accept-length 2 --k 16", "k is 16; it must lie in 1 … 15"),
        ("breakeven --decode-ms 1 --verify-ms 1 --acceptance 0.5,2", "acceptance at place 2 is 2"),
        ("breakeven --decode-ms 1 --verify-ms 1 --acceptance 0.5 --verify-ms-at 99=1", "given for k 99"),
        ("breakeven --costs ./nowhere --acceptance 0.5", "cannot read nowhere"),
    ],
)
def test_bad_figures_are_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("outpace: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", ["--acceptance x,y", "--verify-ms-at 3", "--decode-ms fast"])
def test_what_is_no_number(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*CASE.split(), *words.split()])
    assert "invalid" in capsys.readouterr().err


@pytest.mark.parametrize("line", [CASE, "doctor tests/data/sglang-eagle3-tp8.log"])
def test_arithmetic_needs_no_torch(line: str) -> None:
    code = f"import sys; from outpace.cli.main import main\nmain({line.split()!r})\nassert 'torch' not in sys.modules"
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=root)
