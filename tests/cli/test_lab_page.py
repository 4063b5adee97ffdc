"""The commands in docs/lab.md do what the page says: each is run as it is written, after the lines that make the files
it names, on servers that stand in."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lab.fake_http import listening
from lab.fake_server import FakeServer
from outpace.cli.main import main
from outpace.lab.bench.record import SCHEMA as BENCH_SCHEMA
from outpace.lab.limits.rates import Rates
from outpace.lab.paired.verdict import MIN_BLOCKS
from outpace.lab.profile import run
from outpace.lab.profile.record import SCHEMA as PROFILE_SCHEMA
from server.models import make_drafter, make_model

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lab.md"
LINES = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
SERVERS = [line for line in LINES if line.startswith("outpace serve ")]
COMMANDS = [line for line in LINES if line.startswith("outpace ") and line not in SERVERS]
WRITTEN = ("--csv", "--trace", "-o")
"""Options before a file that is written."""
FILE = re.compile(r"[\w./-]+\.(json|jsonl|log)")


def made_by(line: str) -> str | None:
    """The file that a line writes its output to."""
    _, redirected, name = line.partition(" > ")
    return name if redirected else None


def needed(line: str) -> list[str]:
    """The files that a line reads: those that it names, but for what it writes."""
    words = shlex.split(line.partition(" > ")[0])
    return [word for before, word in pairwise(words) if FILE.fullmatch(word) and before not in WRITTEN]


def needs_the_sets(command: str) -> bool:
    """The default workload comes out of packages."""
    return shlex.split(command)[1] in ("bench", "compare") and "--workload" not in command


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the page's names stand for here."""
    torch.manual_seed(0)
    model = make_model(tmp_path_factory.mktemp("page") / "model")
    drafter = make_drafter(model, model.parent / "drafter")
    quick = {"tokens": 31, "ttft_s": 0.004, "cycle_s": 0.002}
    a, b = (FakeServer(engine="outpace", k=k, **quick) for k in (4, 2))
    with listening(a) as first, listening(b) as second:
        yield {
            "http://localhost:8000": first,
            "http://localhost:8001": second,
            "smollm2": f"{model} --num-pages 400 --max-context 200",
            "doctor smollm2": f"doctor {model} --drafter {drafter}",
            "profile smollm2": f"profile {model}",
        }


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory with what the page takes from the repository."""
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(ROOT / "tests")
    monkeypatch.setattr(run, "measure_rates", lambda device: Rates(copy_bytes_s=1e10, matrix_flops_s=1e11))


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=pytest.mark.real_model) if needs_the_sets(c) else c for c in COMMANDS]
)
def test_a_command_of_the_page(command: str, stand_ins: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command.partition(" > ")[0])[1:]
    if words[0] == "experiment" and words[1] != "new":
        follow(next(line for line in COMMANDS if line.startswith("outpace experiment new")), stand_ins, capsys)
    shown = follow(command, stand_ins, capsys)
    assert shown or Path("report.html").stat().st_size > 5000
    if words[:2] == ["bench", "smollm2 --drafter none"]:
        assert "(outpace 0.1.0)" in shown and "accept length 1.000 by its answers" in shown, "without a drafter"
    if "--json" in words and words[0] in ("bench", "profile"):
        assert json.loads(shown)["schema"] == (PROFILE_SCHEMA if words[0] == "profile" else BENCH_SCHEMA)
    for flag in ("--csv", "--trace"):
        assert flag not in words or Path(words[words.index(flag) + 1]).is_file()
    if words[:2] == ["experiment", "run"]:
        assert "Was it applied: applied" in shown


def follow(line: str, stand_ins: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """Does what a line says, after those before it on the page that make what it reads; what it printed."""
    before = LINES[: LINES.index(line)]
    for name in needed(line):
        if not Path(name).exists():
            maker = next((other for other in reversed(before) if made_by(other) == name), None)
            assert maker is not None, f"no line before it makes {name}"
            follow(maker, stand_ins, capsys)
    if not line.startswith("outpace "):
        subprocess.run(line, shell=True, check=True)
        return ""
    capsys.readouterr()
    assert main(words_of(line, stand_ins)) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    if (name := made_by(line)) is not None:
        Path(name).write_text(shown)
    return shown


def words_of(line: str, stand_ins: dict[str, str]) -> list[str]:
    """The command's words, with what stands in for servers and models."""
    command = line.partition(" > ")[0].removeprefix("outpace ")
    if command.startswith("compare "):  # one model is started by a command of bench; two more would take long
        command = re.sub(r'"smollm2[^"]*"', "http://localhost:8000", command)
    for name in ("doctor smollm2", "profile smollm2"):
        command = command.replace(name, stand_ins[name])
    words = shlex.split(command)
    for name in ("http://localhost:8000", "http://localhost:8001", "smollm2"):
        words = [word.replace(name, stand_ins[name]) for word in words]
    return words


def test_servers_that_the_page_asks_are_started_by_it() -> None:
    asked = set(re.findall(r"http://localhost:(\d+)", "\n".join(COMMANDS)))
    assert {port for line in SERVERS for port in re.findall(r"--port (\d+)", line)} == asked


def test_a_number_of_blocks_that_the_page_names_gives_a_verdict() -> None:
    named = [int(num) for num in re.findall(r"--num-blocks (\d+)", "\n".join(COMMANDS))]
    assert named and min(named) >= MIN_BLOCKS


def test_the_page_has_every_command_of_the_lab() -> None:
    found = {shlex.split(command)[1] for command in COMMANDS}
    assert found == {"bench", "compare", "doctor", "fingerprint", "experiment", "profile", "breakeven", "report"}


def test_the_picture_is_there() -> None:
    """Small enough for a repository."""
    (name,) = re.findall(r"\]\((\S+\.png)\)", PAGE.read_text(encoding="utf-8"))
    picture = (PAGE.parent / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 200_000
