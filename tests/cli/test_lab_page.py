"""The commands in docs/lab.md do what the page says: each is run as it is written, on servers that stand in."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.golden import DATA
from lab.fake_http import listening
from lab.fake_server import FakeServer
from lab.records import gpu_profile
from outpace.cli.main import main
from outpace.fingerprint import machine
from outpace.lab.limits.rates import Rates
from outpace.lab.profile import run
from outpace.lab.profile.record import SCHEMA as PROFILE_SCHEMA
from outpace.lab.written import to_json
from server.models import make_drafter, make_model

PAGE = Path(__file__).parent.parent.parent / "docs" / "lab.md"
COMMANDS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("outpace ")]
FILES = {"eagle3.log": "sglang-eagle3-tp8.log", "plain.log": "sglang-baseline.log", "client.json": "client-bench.json"}
"""What the page calls them, and what they are here."""


def needs_the_sets(command: str) -> bool:
    """The default workload comes out of packages."""
    return shlex.split(command)[1] in ("bench", "compare") and "--workload" not in command


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the page's names stand for here."""
    torch.manual_seed(0)
    model = make_model(tmp_path_factory.mktemp("page") / "model")
    fast = {"tokens": 31, "ttft_s": 0.004, "cycle_s": 0.002}
    with listening(FakeServer(engine="vllm", **fast)) as a, listening(FakeServer(engine="sglang", **fast)) as b:
        yield {
            "http://localhost:8000": a,
            "http://localhost:8001": b,
            "smollm2": f"{model} --num-pages 400 --max-context 200",
            "./drafter": str(make_drafter(model, model.parent / "drafter")),
        }


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=pytest.mark.real_model) if needs_the_sets(c) else c for c in COMMANDS]
)
def test_a_command_of_the_page(
    command: str,
    stand_ins: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "measure_rates", lambda device: Rates(copy_bytes_s=1e10, matrix_flops_s=1e11))
    Path("profile.json").write_text(to_json(gpu_profile()))
    for name in ("bench.json", "breakeven.json", "doctor.json"):
        shutil.copy(DATA / name, name)
    Path("questions.jsonl").write_text("".join(json.dumps(f"What is {n} times {n}?") + "\n" for n in range(40)))
    for name, here in FILES.items():
        shutil.copy(DATA / here, name)
    words = shlex.split(command.partition(" > ")[0])[1:]
    if words[0] == "compare":  # one model is started by a command of bench; two more would take long
        words = [stand_ins["http://localhost:8000"] if word.startswith("smollm2") else word for word in words]
    if words[0] in ("doctor", "profile"):  # an engine is made here, not a server
        words = [stand_ins["smollm2"].split()[0] if word == "smollm2" else word for word in words]
    words = [_here(word, stand_ins) for word in words]
    _prepare(words, stand_ins)
    capsys.readouterr()
    assert main(words) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown or Path("report.html").stat().st_size > 5000
    if words[0] == "bench" and "smollm2" in command:
        assert "(outpace 0.1.0)" in shown and "accept length 1.000 by its answers" in shown, "without a drafter"
    if "--json" in words and words[0] != "fingerprint":
        assert json.loads(shown)["schema"] == (PROFILE_SCHEMA if words[0] == "profile" else 1)
    for flag in ("--csv", "--trace"):
        assert flag not in words or Path(words[words.index(flag) + 1]).is_file()
    if words[:2] == ["experiment", "run"]:
        assert "Was it applied: unknown" in shown, "A is a vLLM, which tells no settings"


def _here(word: str, stand_ins: dict[str, str]) -> str:
    for name, here in stand_ins.items():
        word = word.replace(name, here)
    return word


def _prepare(words: list[str], stand_ins: dict[str, str]) -> None:
    """What the commands before it on the page have left behind."""
    if words[0] == "experiment" and words[1] != "new":
        new = next(command for command in COMMANDS if command.startswith("outpace experiment new"))
        assert main([_here(word, stand_ins) for word in shlex.split(new)[1:]]) == 0
    if "--diff" in words:
        for name in ("monday.json", "tuesday.json"):
            Path(name).write_text(json.dumps(machine()))


def test_the_page_has_every_command_of_the_lab() -> None:
    found = {shlex.split(command)[1] for command in COMMANDS}
    assert found == {"bench", "compare", "doctor", "fingerprint", "experiment", "profile", "report"}


def test_the_picture_is_there() -> None:
    """Small enough for a repository."""
    (name,) = re.findall(r"\]\((\S+\.png)\)", PAGE.read_text(encoding="utf-8"))
    picture = (PAGE.parent / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 200_000
