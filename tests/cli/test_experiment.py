"""`outpace experiment` from the hypothesis to the page, against servers behind sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.fake_http import listening
from lab.fake_network import simulate
from lab.fake_server import FakeServer
from outpace.cli.main import main

QUICK: dict[str, Any] = {"tokens": 31, "ttft_s": 0.002, "cycle_s": 0.002}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asks.jsonl").write_text("".join(json.dumps(f"What is {n}?") + "\n" for n in range(40)))


def new(a: str, b: str, *words: str) -> int:
    texts = ("--hypothesis", "more drafts are faster", "--change", "k from 2 to 4")
    return main(["experiment", "new", "k4", *texts, "--a", a, "--b", b, *words])


def run() -> int:
    return main(["experiment", "run", "k4", "--workload", "asks.jsonl", "--num-blocks", "8", "--json"])


def test_from_hypothesis_to_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = FakeServer(engine="outpace", k=2, slower=1.5), FakeServer(engine="outpace", k=4)
    assert new(*simulate(monkeypatch, slow=slow, fast=fast), "--setting", "k=4") == 0
    assert "Not run yet" in capsys.readouterr().out
    assert run() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"]["applied"] == "applied"
    assert found["outcome"]["verdict"] == "faster"
    assert found["outcome"]["conclusion"].startswith("The change was applied. B is faster")
    assert found["outcome"]["ratio"] == pytest.approx(1.5, rel=0.01)
    assert run() == 2, "a result is not overwritten"
    assert "results are not overwritten" in capsys.readouterr().err
    (folder,) = Path("experiments").glob("*-k4")
    assert json.loads((folder / "compare.json").read_text())["verdict"]["kind"] == "faster"
    assert "## Was it applied: applied" in (folder / "experiment.md").read_text()
    assert main(["experiment", "list"]) == 0
    assert "| applied | " in capsys.readouterr().out
    assert main(["experiment", "show", "k4"]) == 0
    assert "| k |  | 4 | 2 | 4 | applied |" in capsys.readouterr().out.replace("–", "")


@pytest.mark.parametrize(
    ("engine", "setting", "state"),
    [("outpace", "k=8", "not applied"), ("vllm", "k=4", "unknown"), ("sglang", "tp_size=8", "not applied")],
)
def test_what_was_not_applied_or_is_not_known(
    engine: Any, setting: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(FakeServer(engine=engine, k=4, **QUICK)) as url:
        assert new(url, url, "--setting", setting) == 0
        capsys.readouterr()
        assert main(["experiment", "run", "k4", "--workload", "asks.jsonl", "--num-blocks", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outcome"]
    assert found["applied"] == state
    assert not found["conclusion"].startswith("The change was applied")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_list_is_shown_without_what_is_broken_which_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("m", "n") == 0
    broken = Path("experiments/2026-11-30-broken")
    broken.mkdir()
    (broken / "experiment.json").write_text("{")
    capsys.readouterr()
    assert main(["experiment", "list", *words]) == 2
    shown = capsys.readouterr()
    assert "more drafts are faster" in shown.out and "broken" not in shown.out
    assert f"cannot read {broken}/experiment.json" in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing"], "has no experiment 'nothing'; there are none yet"),
        (["show", "nothing"], "has no experiment"),
        (["new", "x", "--hypothesis", "h", "--change", "c", "--a", "--k", "--b", "m"], None),
        (["new", "x", "--hypothesis", "h", "--change", "c", "--a", "ftp://x", "--b", "m"], "is no http URL"),
        (["new", "x", "--hypothesis", "h", "--change", "c", "--a", "http://u:p@x", "--b", "m"], "holds a password"),
        (["new", "x", "--hypothesis", "h", "--change", "c", "--a", "m", "--b", "m", "--setting", "k"], "NAME=VALUE"),
    ],
)
def test_what_is_refused(words: list[str], message: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    if message is None:
        with pytest.raises(SystemExit, match="2"):
            main(["experiment", *words])
        return
    assert main(["experiment", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("experiments").exists()
