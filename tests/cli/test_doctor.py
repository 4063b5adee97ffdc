from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.golden import DATA, check
from outpace.cli.doctor import lines
from outpace.cli.main import main
from outpace.lab.doctor.case import choose
from outpace.lab.doctor.collect import runs_in
from outpace.lab.doctor.diagnosis import diagnose
from outpace.lab.logs.reader import read_log
from outpace.lab.logs.records import Unread

CASE = [
    *("doctor", str(DATA / "sglang-eagle3-tp8.log")),
    *("--baseline", str(DATA / "sglang-baseline.log"), "--client", str(DATA / "client-bench.json")),
]


def test_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASE) == 0
    shown = capsys.readouterr().out
    check("doctor.txt", shown)
    assert max(map(len, shown.splitlines())) <= 100


def test_the_case_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check("doctor.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert len(found["verdict"]) == 3
    assert {"question", "answer", "text", "confidence", "evidence", "numbers"} <= found["findings"][0].keys()
    assert found["read"]["sglang-eagle3-tp8.log"]["records"] == 49


def test_the_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASE[:2]) == 0
    check("doctor-log-alone.txt", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "./nowhere"], "cannot read nowhere"),
        (["doctor", str(DATA)], "cannot read"),
        ([*CASE[:2], "--client", "./nowhere"], "cannot read nowhere"),
        ([*CASE[:2], "--client", CASE[1]], "is not JSON"),
        ([*CASE, "--client-run", "x"], "has no 'x'"),
        ([*CASE[:2], "--client-run", "x"], "give it with --client"),
        ([*CASE[:2], "--client-baseline", "x"], "give it with --client"),
    ],
)
def test_bad_files_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


SOURCES = ("sglang-eagle3-tp8.log", "sglang-baseline.log")
LINES = [line for name in SOURCES for line in (DATA / name).read_text().splitlines()[:12]]
NUMBER = re.compile(r"(?<=: )[\d.]+|(?<==)\d+")


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 8), st.integers(0, 999))), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_whatever_a_log_holds_there_is_a_page(chosen: list[tuple[str, int, int]], times: int) -> None:
    """Lines in any order, one number of each replaced, the whole repeated."""
    texts = []
    for line, place, number in chosen:
        numbers = [found.span() for found in NUMBER.finditer(line)]
        first, last = numbers[place % len(numbers)] if numbers else (0, 0)
        texts.append(line[:first] + f"{number / 10:.2f}" + line[last:] if numbers else line)
    raw = "\n".join(texts * times).encode()
    records = (entry for entry in read_log(io.BytesIO(raw)) if not isinstance(entry, Unread))
    found = diagnose(choose(list(runs_in(records, "log")), [], None), {})
    assert len(found.verdict) == 3
    assert lines(found)
    json.dumps(found.as_dict(), allow_nan=False)
