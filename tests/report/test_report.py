"""What reports are made of: files that are told apart or refused, escaping, and sentences that claim no more than is
there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.golden import DATA, check
from lab.records import gpu_profile
from lab.simulated import Machine
from outpace.cli.main import main
from outpace.errors import ConfigError
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.server_facts import ServerFacts
from outpace.lab.bench.settings import Asking
from outpace.lab.paired.record import SCHEMA, CompareRecord, Side
from outpace.lab.paired.verdict import judge
from outpace.lab.profile.record import Paired, ProfileRecord
from outpace.lab.report.files import Breakeven, Doctor, Source, read
from outpace.lab.report.html import Markup, tag
from outpace.lab.report.page import page
from outpace.lab.report.sentences import CANNOT, leads
from outpace.lab.written import to_json
from outpace.version import __version__


def benched() -> BenchRecord:
    return msgspec.json.decode((DATA / "bench.json").read_bytes(), type=BenchRecord)


def compared(true_ratio: float = 1.1, num: int = 24) -> CompareRecord:
    blocks = Machine(seed=0, true_ratio=true_ratio).blocks(num)
    return CompareRecord(
        schema=SCHEMA,
        started_at="then",
        a=Side(label="plain", server=ServerFacts(url="http://a", model="m")),
        b=Side(label="eagle", server=ServerFacts(url="http://b", model="m")),
        asking=Asking(),
        num_blocks=num,
        concurrency=1,
        measure="decode",
        verdict=judge(blocks, 0.02),
        blocks=tuple(blocks),
        notes=(),
        client={"cpu": "a processor"},
    )


def source(result: Any, name: str = "here.json") -> Source:
    return Source(name=name, result=result)


def told(*results: Any) -> list[str]:
    """Every sentence, of all results."""
    return [text for each in leads([source(result) for result in results]) for text in each.sentences]


def real(profile: ProfileRecord, **changes: Any) -> ProfileRecord:
    return replace(profile, simulated=False, model="a model", **changes)


def test_every_kind_is_told_by_its_fields(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.txt"
    records = [
        to_json(benched()),
        to_json(compared()),
        to_json(gpu_profile()),
        "",
        json.dumps({"heat": [], "speeds": []}),
    ]
    mixed.write_text("\n".join(records))
    found = [type(each.result) for each in read([mixed, DATA / "doctor.json", DATA / "bench.json"])]
    assert found == [BenchRecord, CompareRecord, ProfileRecord, Breakeven, Doctor, BenchRecord]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("no JSON", "cannot read"),
        ("{}\nno JSON", "cannot read"),
        ("[1]", "holds no result"),
        ('{"schema": 1}', "holds no result"),
        ('{"figures": 1, "server": 2, "schema": 7}', "has schema 7; this version reads 2"),
        ('{"figures": 1, "server": 2, "schema": 2}', "is a broken result"),
        ('{"verdict": 1, "findings": []}', "is a broken result"),
        ('{"speeds": [], "heat": [{"down": "", "across": "", "rows": ["1"], "columns": ["1"], "ratio": [[1, 2]], '
         '"notes": [], "here": null}]}', "rows of other lengths"),
        ("[" * 100_000, "cannot read"),
        ('{"a": "\\ud800"}', "cannot read"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read([path])


def test_the_machine_of_every_measurement_is_shown() -> None:
    doctor = msgspec.convert(json.loads((DATA / "doctor.json").read_text()), type=Doctor)
    measured = replace(doctor, machine={"cpu": "the doctor's own"})
    a, b = compared().a, replace(compared().b, commit="c0ffee" * 6 + "c0ff")
    shown = page([source(each) for each in (measured, replace(compared(), a=a, b=b))])
    assert "the doctor&#x27;s own" in shown and "B, commit: c0ffee" in shown and "A, commit" not in shown
    assert "Machines and settings" not in page([source(doctor)]), "a log's machine is not known"


def test_a_result_cut_short_at_any_place_is_refused_by_name(tmp_path: Path) -> None:
    whole, path = to_json(gpu_profile()), tmp_path / "cut.json"
    for length in range(1, len(whole), 97):
        path.write_text(whole[:length])
        with pytest.raises(ConfigError, match=r"cut\.json"):
            read([path])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    assert main(["report", str(DATA / "doctor.json"), str(DATA / "bench.json"), "-o", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == "" and "report.html" in shown.err
    assert "27% slower" in out.read_text()
    for words, message in (
        ([str(tmp_path / "none.json"), "-o", str(out)], "cannot read"),
        ([str(DATA / "doctor.json"), "-o", str(tmp_path / "no" / "r.html")], "cannot write"),
        ([str(out), "-o", str(out)], "cannot read"),
    ):
        assert main(["report", *words]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    kept = tmp_path / "doctor.json"
    kept.write_text((DATA / "doctor.json").read_text())
    assert main(["report", str(kept), "-o", str(kept)]) == 2
    assert kept.read_text() == (DATA / "doctor.json").read_text(), "a result is not written over"


def test_it_needs_no_torch(tmp_path: Path) -> None:
    words = ["report", str(DATA / "doctor.json"), str(DATA / "bench.json"), "-o", str(tmp_path / "r.html")]
    code = (
        f"import sys; from outpace.cli.main import main\nassert main({words}) == 0\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_whole_page() -> None:
    found = [source(gpu_profile(), "profile.json"), *read([DATA / "breakeven.json"])]
    check("report.html", page(found).replace(f"outpace {__version__}", "outpace VERSION"))


def test_what_stands_on_top_is_not_said_again_below() -> None:
    doctor = msgspec.convert(json.loads((DATA / "doctor.json").read_text()), type=Doctor)
    first = doctor.verdict[0].partition(", ")[0]
    assert page([source(doctor)]).count(first) == 1
    assert page([source(real(gpu_profile())), source(doctor)]).count(first) == 1, "the profile speaks on top"


def test_places_are_drawn_once_however_many_sources_tell_them() -> None:
    record = benched()
    assert sum(bool(each.by_position) for each in record.acceptance) == 2
    assert page([source(record)]).count("Accepted at each position") == 1


def test_figures_that_were_given_end_in_what_would_have_to_change() -> None:
    (found,) = read([DATA / "breakeven.json"])
    assert isinstance(found.result, Breakeven)
    assert told(found.result)[2] == (
        "Leave speculation off until a cycle brings more than 2.42 tokens or a verify takes less than 24.2 ms."
    )
    assert told(found.result)[0].startswith("By the figures that were given, speculation does not pay: 68.3 tok/s")
    assert len(told(replace(found.result, ratio=1.2))) == 2, "nothing asks for a change"
    shown = page([found])
    assert "accept length ↓" in shown and "verify in plain steps →" in shown
    assert "150.0 tok/s" in shown and "What a speed takes" in shown


class Elements(HTMLParser):
    """Counts elements, notes attributes and that what was opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


EVIL = """</title></style><script>alert(1)</script><img src=x onerror='alert("1")'>&amp;"""


def test_nothing_from_a_file_becomes_markup() -> None:
    """Every text of every kind of result is replaced by markup."""

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {(EVIL if key.startswith("a_") else key): poisoned(each) for key, each in value.items()}
        if isinstance(value, list):
            return [poisoned(each) for each in value]
        return EVIL if isinstance(value, str) and value not in KEPT else value

    records = [benched(), compared(), gpu_profile()]
    plain = [msgspec.json.decode(to_json(record)) for record in records]
    doctor = json.loads((DATA / "doctor.json").read_text())
    results = [
        *(msgspec.convert(poisoned(each), type=type(record)) for each, record in zip(plain, records, strict=True)),
        msgspec.convert(poisoned(doctor), type=Doctor),
    ]
    clean = Elements(page([source(result) for result in [*records, msgspec.convert(doctor, type=Doctor)]]))
    found = Elements(page([source(result, EVIL) for result in results]))
    assert not found.open and not clean.open
    assert "script" not in found.names and "img" not in found.names
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert set(found.names) == set(clean.names)
    assert found.text.count("<script>alert(1)</script>") > 50, "it is shown as what it is"


KEPT = {
    *("profile", "graph", "eager", "draft", "verify", "accept", "gaps", "outpace", "vllm", "sglang", "unknown"),
    *("chat", "completions", "usage", "tokenizer", "characters", "counts", "requests", "counters", "gauge"),
    *("faster", "slower", "equivalent", "inconclusive", "A", "B", "A'"),
}
"""Words that a record's type asks for."""


@given(st.text())
def test_any_text_is_text(text: str) -> None:
    made = tag("p", text, title=text)
    assert isinstance(made, Markup)
    found = Elements(made)
    assert found.names == ["p"] and not found.open and [name for name, _ in found.attributes] == ["title"]


def test_sentences_of_a_profile() -> None:
    pays, why, trust = told(real(gpu_profile()))
    assert pays == "Speculation pays for a model on cuda: 514.9 tok/s against 232.5 plain, 2.21× (2.19 … 2.24)."
    assert why == "Verify takes 85% of a cycle of 5.0 ms; a cycle brings 2.60 tokens and breaks even at 1.17."
    adds_up = "The parts add up: 0.5% of the cycle is unexplained"
    assert trust == f"{adds_up}, and timing its phases cost +0.4% (-0.1% … +0.8%)."
    on_cpu = replace(gpu_profile().served, timing=None, slowdown=Paired(median=0.01, low=0.0, high=0.02))
    assert told(real(gpu_profile(), ways=(on_cpu,)))[2] == f"{adds_up}, and watching it cost +1.0% (+0.0% … +2.0%)."
    slow = real(gpu_profile(), speedup=Paired(median=0.9, low=0.85, high=0.95))
    assert told(slow)[0].startswith("Speculation does not pay for a model")


def test_a_profile_claims_no_more_than_its_interval() -> None:
    unsure, _, more = told(real(gpu_profile(), speedup=Paired(median=1.1, low=0.9, high=1.3)))
    assert unsure.startswith("Whether speculation pays is too close to tell for a model on cuda")
    assert more.endswith("more rounds (--num-rounds) would settle it.")
    few = Paired(median=2.2, low=None, high=None)
    way = replace(gpu_profile().served, timing=few)
    pays, _, trust = told(real(gpu_profile(), speedup=few, num_rounds=2, ways=(way,)))
    assert pays == (
        "There are too few rounds to tell whether speculation pays for a model on cuda: 514.9 tok/s against 232.5 "
        "plain, 2.20× without an interval."
    )
    assert "in too few rounds for an interval" in trust
    assert trust.endswith("An interval takes 6 rounds or more (--num-rounds); there are 2.")


def test_random_weights_are_never_said_to_pay() -> None:
    assert told(gpu_profile())[0].startswith("Acceptance is simulated, so only times mean anything")


def test_what_no_file_says_is_said_to_be_unknown() -> None:
    pays, speed, all_well = told(benched())
    assert pays == CANNOT
    assert speed.startswith("A stream of fake wrote 150.0 tok/s (150.0 … 150.0)")
    assert all_well == "All 4 requests were answered."
    figures = benched().figures
    assert figures.decode_tok_s is not None
    few = replace(figures, by_context=(), decode_tok_s=replace(figures.decode_tok_s, low=None, high=None))
    assert "150.0 tok/s (too few requests for an interval, which takes 4)" in told(replace(benched(), figures=few))[1]
    alone = real(gpu_profile(), plain=None, speedup=None, break_even=None)
    assert told(alone)[0].startswith("Whether speculation pays cannot be said")


def test_sentences_of_the_doctor_are_its_own_verdict() -> None:
    (found,) = read([DATA / "doctor.json"])
    verdict = found.result.verdict  # type: ignore[union-attr]
    assert told(found.result) == [f"sglang-eagle3-tp8.log: {verdict[0]}", *verdict[1:]]
    assert told(replace(found.result, subject=None)) == verdict, "a result of an earlier version"  # type: ignore[type-var]


def test_what_was_cut_short_is_said_to_be() -> None:
    record = replace(benched(), cut_short=True, load=replace(benched().load, num_prompts=24))
    assert told(record)[-1] == "It was cut short: 4 of 24 requests were answered."
    assert told(replace(compared(num=9), cut_short=True, num_blocks=24))[-1] == (
        "It was cut short: 9 of 24 blocks were measured."
    )


def test_sentences_of_a_comparison() -> None:
    assert told(compared())[0].startswith("eagle is faster than plain: 1.1")
    assert told(compared(1.0))[0].startswith("eagle is as fast as plain within 2%")
    pays, more = told(compared(num=5))
    assert pays == "Whether eagle is faster than plain is not settled: 5 blocks to go by; a verdict takes 8."
    assert more == "About 3 more blocks would settle it."


def test_no_sentence_mixes_results_and_each_names_its_file() -> None:
    """Two models, two verdicts: of neither is the other's reason told."""
    pays = real(gpu_profile())
    slow = real(replace(gpu_profile(), speedup=Paired(median=0.9, low=0.85, high=0.95)), break_even=2.9)
    found = leads([source(benched(), "bench.json"), source(pays, "p.json"), source(replace(slow, model="b"), "b.json")])
    assert [each.name for each in found] == ["p.json", "b.json", "bench.json"], "those that tell whether it pays first"
    first, second, third = (each.sentences for each in found)
    assert first[0].startswith("Speculation pays for a model") and "breaks even at 1.17" in first[1]
    assert second[0].startswith("Speculation does not pay for b") and "breaks even at 2.90" in second[1]
    assert third[0].startswith("A stream of fake")
    shown = page([source(pays, "p.json"), source(replace(slow, model="b"), "b.json")])
    assert shown.count('class="lead"') == 2
