"""`outpace bench` and `outpace compare` as they are typed, against sockets and against `outpace serve` itself."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.fake_http import listening
from lab.fake_network import simulate
from lab.fake_server import FakeServer
from lab.simulated import Machine
from outpace.cli import compare
from outpace.cli.main import main
from outpace.lab.bench import subject
from outpace.lab.bench.own_server import checkout, full_commit
from outpace.lab.bench.subject import subject_of
from outpace.lab.paired.verdict import judge
from server.models import make_drafter, make_model
from server.running import Server, is_alive, serving, until

FAST: dict[str, Any] = {"ttft_s": 0.03, "cycle_s": 0.01}


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("asks") / "asks.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {n}?"}) + "\n" for n in range(40)))
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, with a tiny model."""
    torch.manual_seed(0)
    model = make_model(tmp_path_factory.mktemp("benched") / "model")
    drafter = make_drafter(model, model.parent / "drafter")
    flags = ("--num-pages", "400", "--max-rows", "4", "--control", "fixed", "--k", "3", "--max-context", "400")
    with serving(model, "--drafter", str(drafter), *flags) as running:
        yield running


def test_several_tokens_a_chunk_over_a_socket(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeServer(engine="plain", tokens=121, per_chunk=2, cycle_s=0.04)
    with listening(fake) as url:
        words = ["bench", url, "--workload", workload, "--num-prompts", "8", "--concurrency", "4"]
        assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    truth = [120 / (last - first) for first, last in fake.times[-8:]]
    assert found["figures"]["decode_tok_s"]["median"] == pytest.approx(median(truth), rel=0.5), "not of pieces"
    assert found["figures"]["total_tokens"] == 8 * 121
    assert {"cpu", "python", "commit"} <= found["client"].keys()


def test_a_page_and_a_table(workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "requests.csv"
    with listening(FakeServer(engine="vllm", fail_every=6, **FAST)) as url:
        words = ["bench", url, "--workload", workload, "--num-prompts", "6", "--csv", str(table)]
        assert main([*words, "--max-ttft-ms", "100000"]) == 0
    page = capsys.readouterr().out
    for part in (
        "fake at http://127.0.0.1:",
        "(vllm 0.21.0)",
        "6 requests, 1 at a time",
        "inter-token latency",
        "inter-chunk latency",
        "decode tok/s of one stream, by context length",
        "accept length 3.000, acceptance rate 0.500 by counters in its metrics; by position 1.00 1.00 0.00 0.00",
        "1 of 6 requests failed",
        "HTTP 500   first: HTTP 500: the engine is on fire",
        "goodput: 5 requests within all limits (83%)",
    ):
        assert part in page, part
    assert max(map(len, page.splitlines())) <= 110
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 6 and sum(bool(row["error"]) for row in rows) == 1


def test_all_requests_failed(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeServer(engine="vllm", **FAST)
    with listening(fake) as url:
        words = ["bench", url, "--workload", workload, "--num-prompts", "2", "--timeout-s", "0.01"]
        assert main(words) == 2, "it does not even answer once"
    assert "timeout: no end after 0.01 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://127.0.0.1:9", "cannot reach http://127.0.0.1:9"),
        ("ftp://x", "'ftp://x' is no http URL"),
        ("http://127.0.0.1:9 --k 3", "gives options to a server that runs already"),
        ("--k 3", "names no model"),
        ("./nowhere", "there is no model './nowhere'"),
        ("./tests", "the server did not start; it said outpace: "),
        ("o/m --nonsense", "outpace serve: unrecognized arguments: --nonsense"),
        ("@nonsense smollm2", "there is no commit 'nonsense'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", f" {target}"])  # a leading blank, or argparse would take one of them for options
    said = capsys.readouterr().err.splitlines()
    assert code == 2
    assert message in said[-1], said


def test_a_server_without_metrics_or_models(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(FakeServer(engine="plain", **FAST)) as url:
        assert main(["bench", url, "--workload", workload, "--num-prompts", "2"]) == 0
        assert "acceptance: the server tells none" in capsys.readouterr().out
        assert main(["bench", url, "--workload", workload, "--model-name", "other"]) == 2
    assert "has no model 'other'; it lists fake" in capsys.readouterr().err


def interrupting(at: int, **settings: Any) -> FakeServer:
    """A server at whose so manieth request somebody presses Ctrl-C."""

    def press(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGINT)

    return FakeServer(engine="vllm", tokens=31, on_asked=press, **settings)


def test_ctrl_c_keeps_what_was_measured(workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "requests.csv"
    words = ["bench", "--workload", workload, "--num-prompts", "20", "--csv", str(table)]
    with listening(interrupting(1 + 2 + 6, **FAST)) as url:
        assert main([*words, url, "http://127.0.0.1:9"]) == 130
    shown = capsys.readouterr()
    num = len(list(csv.DictReader(table.read_text().splitlines())))
    assert 5 <= num < 20, "more than five if this machine is slow to hear it"
    assert f"! cut short: {num} of 20 requests were answered" in shown.out
    assert f"{num} requests, 1 at a time" in shown.out and "decode tok/s of one stream" in shown.out
    assert "cannot reach" not in shown.err, "the next one is not begun"
    with listening(interrupting(1 + 2 + 6, **FAST)) as url:
        assert main([*words, url, "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["cut_short"] is True and 5 <= found["figures"]["num_requests"] < 20


def test_ctrl_c_before_the_first_answer_ends_it(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(interrupting(2, **FAST)) as url:
        assert main(["bench", url, "--workload", workload]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_keeps_the_blocks_of_a_comparison(
    flags: list[str], workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workload", workload, "--num-blocks", "20", "--max-tokens", "8", *flags]
    quick = {"ttft_s": 0.002, "cycle_s": 0.002}
    with listening(interrupting(2 + 5 * 8 + 3, **quick)) as a, listening(FakeServer(engine="vllm", **quick)) as b:
        assert main(["compare", a, b, *words, "--fail-if-slower"]) == 130
    shown = capsys.readouterr()
    assert shown.err.startswith("asking both servers what they are\nwarming up\nmeasuring\n")
    if flags:
        found = json.loads(shown.out)
        assert found["cut_short"] is True and 8 <= len(found["blocks"]) < found["num_blocks"] == 20
    else:
        assert "blocks of six runs count" in shown.out
        assert re.search(r"! cut short: (8|9|1\d) of 20 blocks were measured", shown.out)


STARTS_A_SERVER = """
import subprocess, sys, time
from outpace.lab.bench import own_server

start = subprocess.Popen
TELL = "print(json.dumps({'event': %r, 'port': 1}), file=sys.stderr, flush=True)"


def stand_in(words, **options):
    tells = [TELL % event for event in ("listening", "engine ready")]
    process = start([sys.executable, "-c", "; ".join(["import json, sys, time", *tells, "time.sleep(600)"])], **options)
    print(process.pid, flush=True)
    return process


own_server.subprocess.Popen = stand_in
with own_server.own_server("m"):
    print("ready", flush=True)
    time.sleep(600)
"""
"""The server does nothing; its id is printed."""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_server_of_ours_hears_no_ctrl_c_and_ends_with_whoever_started_it(number: signal.Signals) -> None:
    """It has a session of its own, so what ends the command has to end it."""
    with subprocess.Popen([sys.executable, "-c", STARTS_A_SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        assert os.getsid(pid) == pid
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


STARTS_OURS = """
import sys, time
from outpace.lab.bench.own_server import own_server

with own_server(sys.argv[1], ["--drafter", "none", "--num-pages", "100"]) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_server_of_ours_does_not_outlive_a_measurement_that_is_killed(tmp_path: Path) -> None:
    """As for want of memory: nobody is left to end it, and it would keep a GPU."""
    words = [sys.executable, "-c", STARTS_OURS, str(make_model(tmp_path / "model"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
    (pid,) = map(int, started)
    try:
        until(lambda: not is_alive(pid))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def test_our_own_server(server: Server, workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", server.url, "--workload", workload, "--num-prompts", "5", "--max-tokens", "30", "--ignore-eos"]
    before = server.state()["totals"]["tokens"]
    assert main([*words, "--concurrency", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["server"]["engine"] == "outpace"
    assert found["server"]["settings"]["engine"]["k"] == 3
    assert found["figures"]["total_tokens"] == 5 * 30
    assert found["figures"]["num_failed"] == 0
    assert server.state()["totals"]["tokens"] - before == (1 + 2 + 5) * 30
    requests, counters = found["acceptance"]
    assert requests["source"] == "requests" and counters["source"] == "counters"
    assert requests["cycles"] == counters["cycles"] and requests["accepted"] == counters["accepted"]
    assert requests["accept_length"] == pytest.approx(counters["accept_length"])
    assert not any("others" in note for note in found["notes"])


def test_our_own_server_by_its_clock_and_by_its_clients(
    server: Server, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same, as far as two processes of a busy machine see the same moment."""
    words = ["bench", server.url, "--workload", workload, "--num-prompts", "3", "--max-tokens", "200", "--ignore-eos"]
    assert main([*words, "--num-warmup", "0", "--json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    theirs = [entry for entry in server.state()["recent"] if entry["completion_tokens"] == 200][:3][::-1]
    assert len(requests) == len(theirs) == 3
    ratios = [own["latency_s"] / their["seconds"] for own, their in zip(requests, theirs, strict=True)]
    assert median(ratios) == pytest.approx(1.0, abs=0.5)


def test_a_server_equals_itself(server: Server, workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", server.url, server.url, "--workload", workload, "--max-tokens", "8", "--num-blocks", "8"]
    assert main([*words, "--margin", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdict = found["verdict"]  # whatever it is: with no difference, one in twenty is wrong
    assert verdict["num_blocks"] + verdict["num_excluded"] == len(found["blocks"]) == 8
    assert not any("answers are not" in note for note in found["notes"]), "greedy answers are the same"


def test_a_slower_server(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "runs.csv"
    fast, slow = FakeServer(engine="vllm", tokens=31), FakeServer(engine="vllm", tokens=31, slower=1.5)
    urls = simulate(monkeypatch, fast=fast, slow=slow)
    words = ["compare", *urls, "--workload", workload, "--num-blocks", "8", "--csv", str(table)]
    assert main([*words, "--fail-if-slower"]) == 1
    page = capsys.readouterr().out
    assert page.startswith("B is slower than A by 33.3%")
    assert "A again ÷ A (control)" in page and "8 blocks of six runs count" in page
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == 48


def test_ways_to_name_what_is_measured() -> None:
    assert subject_of("http://h:1/v1").url == "http://h:1/v1"
    named = subject_of("@main './my model' --k 3 --drafter none")
    assert (named.commit, named.model, named.flags) == ("main", "./my model", ("--k", "3", "--drafter", "none"))
    assert subject_of("smollm2").flags == ()


def test_a_comparison_of_two_commits(
    workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Their checkouts are real, their servers stand-ins; both are known before either is started."""
    started: list[tuple[Path, bool]] = []
    slow, fast = FakeServer(engine="vllm", tokens=31, slower=1.5), FakeServer(engine="vllm", tokens=31)
    urls = simulate(monkeypatch, slow=slow, fast=fast)

    @contextmanager
    def stand_in(model: str, flags: Any, *, source: Path) -> Iterator[str]:
        started.append((source, (source / "src" / "outpace" / "__init__.py").is_file()))
        yield urls[len(started) - 1]

    monkeypatch.setattr(subject, "own_server", stand_in)
    words = ["--workload", workload, "--num-blocks", "8"]
    assert main(["compare", "@HEAD m", "@HEAD~0 m --k 2", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["compare", "@HEAD m", "@nonsense m", *words]) == 2
    assert "there is no commit 'nonsense'" in capsys.readouterr().err
    assert main(["compare", "@HEAD m", "http://127.0.0.1:9", *words]) == 2
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err
    assert [was_there for _, was_there in started] == [True, True] and not any(place.exists() for place, _ in started)
    assert found["verdict"]["kind"] == "faster"
    assert found["a"]["label"] == "@HEAD m" and found["a"]["commit"] == found["b"]["commit"] == full_commit("HEAD")


@pytest.mark.parametrize("words", [["bench"], ["compare", "http://127.0.0.1:9"]])
def test_where_a_table_cannot_be_written_nothing_is_measured(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "missing" / "runs.csv"):
        assert main([*words, "http://127.0.0.1:9", "--csv", str(place)]) == 2
        assert capsys.readouterr().err.startswith(f"outpace: cannot write {place}: ")


@pytest.mark.parametrize(
    ("kind", "flags", "code"),
    [
        ("slower", ["--fail-if-slower"], 1),
        ("slower", [], 0),
        ("faster", ["--fail-if-slower"], 0),
        ("inconclusive", ["--fail-if-slower"], 0),
    ],
)
def test_exit_codes(
    kind: str, flags: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = {"slower": 0.9, "faster": 1.1, "inconclusive": 1.0}
    verdict = judge(
        Machine(seed=0, true_ratio=ratios[kind], noise=0.05 if kind == "inconclusive" else 0.01).blocks(24), 0.02
    )
    assert verdict.kind == kind
    monkeypatch.setattr(compare, "measured", lambda *named: SimpleNamespace(verdict=verdict, cut_short=False))
    monkeypatch.setattr(compare, "lines", lambda record: ["a page"])
    assert main(["compare", "a", "b", *flags]) == code


def test_a_commits_source() -> None:
    with checkout("HEAD") as (place, full):
        assert (place / "src" / "outpace" / "__init__.py").is_file()
        assert len(full) == 40
    assert not place.exists()
