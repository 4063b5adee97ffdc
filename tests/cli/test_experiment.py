"""`outpace experiment` from the hypothesis to the page, against servers behind sockets."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lab.fake_http import listening
from lab.fake_network import simulate
from lab.fake_server import FakeServer
from outpace.cli import experiment
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


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("o/m --nonsense 3", "outpace serve: unrecognized arguments: --nonsense 3"),
        ("o/m --k 99", "k is 99; it must lie in 0 … 15"),
        ("o/m --k two", "outpace serve: argument --k: invalid int value: 'two'"),
        ("o/m --port -1", "port is -1"),
        ("o/m --drafter ./nowhere", "there is no model './nowhere'"),
        ("./nowhere --k 3", "there is no model './nowhere'"),
        ("@nonsense o/m", "there is no commit 'nonsense'"),
    ],
)
@pytest.mark.parametrize("side", ["a", "b"])
def test_what_could_not_be_run_is_refused_when_it_is_written_down(
    side: str, named: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(*((named, "o/m") if side == "a" else ("o/m", named))) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"outpace: --{side} '{named}': ") and message in said and said.count("\n") == 1
    assert not Path("experiments").exists()


def test_options_of_another_commit_are_its_own() -> None:
    assert new("@HEAD o/m --an-option-of-then 3", "o/m") == 0


def test_a_log_that_becomes_unreadable_loses_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a log while it is checked, and packed by its rotation while servers are asked."""
    log = Path("b.log")
    log.write_text("a log\n")

    def rotate(number: int) -> None:
        if number == 3:
            log.write_bytes(gzip.compress(b"a log"))

    with listening(FakeServer(engine="vllm", on_asked=rotate, **QUICK)) as url:
        assert new(url, url, "--setting", "k=4") == 0
        capsys.readouterr()
        words = ["experiment", "run", "k4", "--workload", "asks.jsonl", "--num-blocks", "1"]
        assert main([*words, "--log-b", "b.log", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outcome"]
    assert found["applied"] == "unknown" and found["ratio"] is not None
    (told,) = (line for line in found["observed"] if "log" in line)
    assert told.startswith("a log could not be read, and says nothing of the change: b.log is packed with gzip")
    (folder,) = Path("experiments").glob("*-k4")
    assert len(json.loads((folder / "compare.json").read_text())["blocks"]) == 1


def test_what_was_measured_is_kept_whatever_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(experiment, "outcome", broken)
    with listening(FakeServer(engine="vllm", **QUICK)) as url:
        assert new(url, url) == 0
        with pytest.raises(RuntimeError):
            main(["experiment", "run", "k4", "--workload", "asks.jsonl", "--num-blocks", "1"])
    (folder,) = Path("experiments").glob("*-k4")
    assert len(json.loads((folder / "compare.json").read_text())["blocks"]) == 1


def test_ctrl_c_keeps_the_blocks_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    def press(number: int) -> None:
        if number == 2 + 5 + 3:
            os.kill(os.getpid(), signal.SIGINT)

    b = FakeServer(engine="vllm", **QUICK)
    with listening(FakeServer(engine="vllm", on_asked=press, **QUICK)) as first, listening(b) as second:
        assert new(first, second) == 0
        capsys.readouterr()
        assert run() == 130
    found = json.loads(capsys.readouterr().out)["outcome"]
    assert found["cut_short"] is True and any(line.startswith("cut short: ") for line in found["observed"])


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_list_is_shown_without_what_is_broken_which_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("o/m", "o/n") == 0
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
        (
            ["new", "x", "--hypothesis", "h", "--change", "c", "--a", "o/m", "--b", "o/m", "--setting", "k"],
            "NAME=VALUE",
        ),
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
