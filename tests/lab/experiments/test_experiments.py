"""Was the change applied: asked against what servers and logs say; and unknown is never taken for yes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.golden import DATA, check
from lab.simulated import Machine
from outpace.errors import ConfigError
from outpace.lab.bench.server_facts import ServerFacts
from outpace.lab.bench.settings import Asking
from outpace.lab.bench.subject import subject_of
from outpace.lab.doctor.collect import runs_of
from outpace.lab.experiments import applied, page
from outpace.lab.experiments.outcome import conclusion, outcome
from outpace.lab.experiments.record import Applied, Experiment
from outpace.lab.experiments.store import Store
from outpace.lab.paired.record import SCHEMA, CompareRecord, Side
from outpace.lab.paired.verdict import judge

OURS: dict[str, Any] = {
    "engine": {"k": 4, "control": "fixed", "prefix_reuse": True},
    "control": {"kind": "fixed", "k": 0},
    "drafter_source": None,
}


@pytest.mark.parametrize(
    ("a", "b", "settings", "asked"),
    [
        ("m --k 2", "m --k 4", {}, {"k": ("2", "4")}),
        ("m", "m --k=4 --no-prefix-reuse", {}, {"k": ("", "4"), "prefix_reuse": ("", "false")}),
        ("m --k 4 --aux-boundaries 2 15 27", "m --k 4", {}, {"aux_boundaries": ("2 15 27", "")}),
        ("m", "@abc m", {}, {"commit": ("", "abc")}),
        ("http://a", "http://b", {"attention-backend": "fa3"}, {"attention_backend": ("", "fa3")}),
        ("http://a", "http://b", {}, {}),
    ],
)
def test_what_is_asked(a: str, b: str, settings: dict[str, str], asked: dict[str, tuple[str, str]]) -> None:
    assert applied.asked(subject_of(a), subject_of(b), settings) == asked


@pytest.mark.parametrize(
    ("name", "asked_a", "asked_b", "a", "b", "state"),
    [
        ("k", "2", "4", {"engine": {"k": 2}}, OURS, "applied"),
        ("k", "", "4", {"engine": {"k": 2}}, OURS, "applied"),
        ("engine.k", "", "4.0", {"engine": {"k": 2}}, OURS, "applied"),
        ("k", "2", "8", {"engine": {"k": 2}}, OURS, "not applied"),
        ("k", "4", "4", OURS, OURS, "not applied"),
        ("k", "3", "4", {"engine": {"k": 2}}, OURS, "not applied"),
        ("k", "2", "4", {}, OURS, "unknown"),
        ("k", "2", "4", OURS, {}, "unknown"),
        ("k", "2", "4", {}, {}, "unknown"),
        ("k", "2", "4", {"k": 2}, {"x": {"k": 4}, "y": {"k": 5}}, "unknown"),
        ("prefix-reuse", "", "false", OURS, {"engine": {"prefix_reuse": False}}, "applied"),
        ("drafter", "", "none", {"drafter_source": "d"}, OURS, "applied"),
        ("commit", "", "abc", OURS, OURS, "unknown"),
    ],
)
def test_was_it_applied(
    name: str, asked_a: str, asked_b: str, a: dict[str, Any], b: dict[str, Any], state: str
) -> None:
    assert applied.judge(name, asked_a, asked_b, a, b).state == state


def test_the_whole_is_as_sure_as_its_parts() -> None:
    def one(state: Any) -> Applied:
        return Applied(name="x", asked_a="", asked_b="", says_a="", says_b="", state=state, why="")

    assert applied.overall([]) == "unknown"
    assert applied.overall([one("applied")] * 2) == "applied"
    assert applied.overall([one("applied"), one("unknown")]) == "unknown"
    assert applied.overall([one("unknown"), one("not applied")]) == "not applied"


def test_what_differs_unasked() -> None:
    a = {"tp_size": 8, "port": 1, "engine": {"k": 2}, "attention_backend": "fa3"}
    b = {"tp_size": 4, "port": 2, "engine": {"k": 4}, "attention_backend": "fa3"}
    assert applied.also_different(a, b, ["k"]) == ["tp_size: 8 → 4"]


def test_of_two_starts_of_a_server_only_what_may_move_a_figure_is_told() -> None:
    machine = {"taken_at": "then", "load_1min": 0.4, "cores": 2, "torch": "2.11", "environment": {}, "commit": "a"}
    later = {**machine, "taken_at": "now", "load_1min": 0.6, "commit": "b"}
    told = {**later, "environment": {"NCCL_ALGO": "Ring"}}
    assert applied.also_different({"fingerprint": machine}, {"fingerprint": later}, ["commit"]) == []
    assert applied.also_different({"fingerprint": machine}, {"fingerprint": told}, ["commit"]) == [
        "fingerprint.environment.NCCL_ALGO: not set → Ring"
    ]
    assert applied.also_different({}, {"fingerprint": told}, []) == []


def test_logs_tell_what_servers_do_not() -> None:
    log = (DATA / "sglang-eagle3-tp8.log").read_text()
    unknown = applied.judge("speculative_attention_mode", "", "decode", {}, {})
    (run,) = runs_of(DATA / "sglang-eagle3-tp8.log")[0]
    found = applied.by_logs(unknown, [], run)
    assert "speculative_attention_mode='decode'" in log.replace('"', "'")
    assert (found.state, found.says_b) == ("unknown", "decode"), "asked for and resolved, but no change was seen"
    assert "asked for and resolved" in found.why
    other = applied.by_logs(replace(unknown, asked_b="prefill"), [], run)
    assert other.state == "not applied"


@pytest.mark.parametrize("state", ["applied", "not applied", "unknown"])
def test_only_an_applied_change_gets_a_plain_verdict(state: Any) -> None:
    said = conclusion(state, "B is faster.")
    assert said.startswith("The change was applied.") is (state == "applied")


def experiment(**changes: Any) -> Experiment:
    fields = {
        "name": "k4",
        "created_at": "2026-11-30T08:00:00+00:00",
        "hypothesis": "4 drafts | beat 2",
        "change": "k",
        "a": "m --k 2",
        "b": "m --k 4",
    }
    return Experiment(**(fields | changes))


def compared(a: Side, b: Side) -> CompareRecord:
    """A tenth faster, by the simulated machine."""
    blocks = Machine(seed=0, true_ratio=1.1).blocks(24)
    return CompareRecord(
        schema=SCHEMA,
        started_at="then",
        a=a,
        b=b,
        asking=Asking(),
        num_blocks=24,
        concurrency=1,
        measure="total",
        verdict=judge(blocks, 0.02),
        blocks=tuple(blocks),
        notes=(),
        client={"commit": "0123456789ab+changes"},
    )


def test_the_pages() -> None:
    """One that was run, one whose change nobody tells of, and one that is only written down."""

    def side(name: str, **settings: Any) -> Side:
        return Side(label=name, server=ServerFacts(url=name, model="m", settings=settings))

    def ran(asked: Experiment, *sides: Side) -> Experiment:
        found = outcome(asked, compared(*sides), "B is faster.")
        return replace(asked, outcome=replace(found, finished_at="2026-11-30T09:00:00+00:00"))

    known = ran(experiment(), side("a", engine={"k": 2}, cores=8), side("b", engine={"k": 4}, cores=4))
    unknown = ran(experiment(name="fa3", settings={"attention_backend": "fa3"}), side("a"), side("b"))
    written = experiment(name="later", hypothesis="Not\nyet.")
    check("experiment.md", "\n".join(page.markdown(known)) + "\n")
    kept = [(Path(f"2026-11-30-{each.name}"), each) for each in (known, unknown, written)]
    check("experiments.md", "\n".join(page.index(kept, ["cannot read x/experiment.json"])) + "\n")


@pytest.mark.parametrize(
    ("a", "b", "commits", "state"),
    [
        ("@v1 m", "@v2 m", ("1" * 40, "2" * 40), "applied"),
        ("@v1 m", "m", ("1" * 40, None), "applied"),
        ("@v2 m", "@main m", ("2" * 40, "2" * 40), "not applied"),
        ("http://a", "@v2 m", (None, "2" * 40), "unknown"),
    ],
)
def test_a_change_of_commit(a: str, b: str, commits: tuple[str | None, str | None], state: str) -> None:
    """Names of branches are resolved when they are run; of a server that ran already nobody knows."""
    of_a, of_b = commits
    record = compared(
        Side(label=a, server=ServerFacts(url="a", model="m"), commit=of_a),
        Side(label=b, server=ServerFacts(url="b", model="m"), commit=of_b),
    )
    found = outcome(experiment(a=a, b=b, change="the code"), record, "B is faster.")
    assert found.applied == state and [each.name for each in found.settings] == ["commit"]
    assert found.observed[0].startswith("tok/s, geometric mean: A 9") and found.verdict == "faster"


def test_the_directory(tmp_path: Path) -> None:
    store = Store(tmp_path / "experiments")
    folder = store.new(experiment(settings={"k": "4"}))
    assert folder.name == "2026-11-30-k4"
    assert sorted(path.name for path in folder.iterdir()) == ["experiment.json", "experiment.md"]
    assert store.find("k4") == store.find("2026-11-30-k4") == (folder, experiment(settings={"k": "4"}))
    store.new(experiment(name="later", created_at="2026-12-01T08:00:00+00:00"))
    rows = (store.root / "index.md").read_text().splitlines()[4:]
    assert "later" in rows[0] and "[k4](2026-11-30-k4/experiment.md) | 4 drafts \\| beat 2" in rows[1]
    assert page.NOT_RUN in rows[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "K 4"}, "no name for an experiment"),
        ({"name": "../x"}, "no name for an experiment"),
        ({"hypothesis": " "}, "hypothesis has 0 characters"),
        ({}, "give this one another name"),
        ({"created_at": "2026-12-24T00:00:00+00:00"}, "give this one another name"),
    ],
)
def test_what_is_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.new(experiment())
    with pytest.raises(ConfigError, match=message):
        store.new(experiment(**changes))


def test_a_broken_file_is_named_and_keeps_nobody_else_from_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.new(experiment())
    other = store.new(experiment(name="other"))
    for text in ("{", "[]", '{"schema": 99}', '{"schema": 1}'):
        (folder / "experiment.json").write_text(text)
        kept = store.all()
        assert kept.found == [(other, experiment(name="other"))] == [store.find("other")]
        assert list(kept.broken) == [folder] and str(folder / "experiment.json") in kept.broken[folder]
        for name in ("k4", folder.name):
            with pytest.raises(ConfigError, match=r"experiment\.json"):
                store.find(name)
    with pytest.raises(ConfigError, match="give this one another name"):
        store.new(experiment(created_at="2026-12-24T00:00:00+00:00"))
    with pytest.raises(ConfigError, match="there are other, k4"):
        store.find("x")
    store.new(experiment(name="third"))
    index = (store.root / "index.md").read_text()
    assert "[other]" in index and "[third]" in index and f"Not listed: cannot read {folder}" in index
    with pytest.raises(ConfigError, match="there are none yet"):
        Store(tmp_path / "other").find("x")
