from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cli.golden import check
from lab.records import gpu_profile
from outpace.cli import profile_page
from outpace.cli.main import main
from outpace.lab.limits.rates import Rates
from outpace.lab.profile import run
from outpace.lab.profile.record import ProfileRecord
from server.models import make_model

SHAPE = "profile --shape tiny --context 40 --max-tokens 16 --num-rounds 1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "measure_rates", lambda device: Rates(copy_bytes_s=1e10, matrix_flops_s=1e11))


def test_the_page() -> None:
    check("profile.txt", "\n".join(profile_page.lines(gpu_profile())) + "\n")


def test_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert main([*SHAPE.split(), "--json", "--k", "2", "--trace", str(trace)]) == 0
    out, err = capsys.readouterr()
    stages = [line.partition(" ")[0] for line in err.splitlines()]
    assert stages == ["drawing", *["warming"] * 3, "round", "writing"], "each stage is a line"
    record = msgspec.json.decode(out, type=ProfileRecord)
    assert record.model == "tiny (random weights)" and record.k == 2 and record.simulated
    assert record.served.speed.tok_s > 0 and len(record.served.parts) > 8
    assert record.machine["cpu"] and record.settings["control"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert any("linear" in event.get("name", "") for event in events), "operations of the host"


def test_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", str(make_model(tmp_path / "model")), "--drafter", "none", "--max-context", "200"]
    assert main([*words, "--prompt", "Hello?", "--num-rounds", "1", "--max-tokens", "16"]) == 0
    shown = capsys.readouterr().out
    assert "accept length 1.000" in shown and "unexplained" in shown and "cpu has no graphs" in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SHAPE} --prompt hello", "--prompt is ['hello'], and --shape takes random weights"),
        (f"{SHAPE} --drafter some/where", "--drafter is 'some/where'; with --shape it is auto"),
        (f"{SHAPE} --aux-boundaries 1", "--aux-boundaries belong to a drafter's checkpoint"),
        (f"{SHAPE} --trace ./nowhere/trace.json", "cannot write nowhere/trace.json"),
        ("profile --shape tiny --context 0", "context is 0; with answers of 48 tokens it must lie in 1 … 131024"),
        ("profile ./nowhere --context 9", "context is 9, which is for --shape"),
        ("demo m --tp 2", "measure the whole with outpace bench 'm --tensor-parallel 2'"),
        ("profile --max-tokens 3", "max_tokens is 3; it must lie in 16 … 65536"),
    ],
)
def test_bad_input_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("outpace: ") and message in said and said.count("\n") == 1
