"""What `outpace fingerprint --diff` says of two machines that differ in known ways."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from cli.golden import check
from fingerprint import smi
from outpace.cli.fingerprint import diff_lines, lines
from outpace.cli.main import main
from outpace.errors import ConfigError
from outpace.fingerprint import nvidia
from outpace.fingerprint.diff import Difference, compare
from outpace.fingerprint.kept import Kept, read

MONDAY: dict[str, Any] = {
    "taken_at": "2026-11-30T08:00:00+00:00",
    "cpu": "Some CPU",
    "cores": 64,
    "instructions": "AVX512",
    "memory_gib": 2015.5,
    "load_1min": 3.1,
    "uptime_s": 500_000,
    "os": "Linux-6.8",
    "python": "3.12.3",
    "torch": "2.11.0+cu128",
    "cuda": "12.8",
    "triton": "3.6.0",
    "nccl": "2.28.9",
    "threads": 8,
    "outpace": "0.1.0",
    "commit": "0123456789ab",
    "gpus": nvidia.read_gpus(smi.query(8)),
    "cuda_driver": "12.8",
    "topology": nvidia.read_topology(smi.TOPOLOGY_8),
    "nvlink": nvidia.read_nvlink(smi.nvlink(8)),
    "environment": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"},
    "processes": [{"pid": 10, "name": "python", "environment": {"CUDA_VISIBLE_DEVICES": "0"}}],
}


def tuesday() -> dict[str, Any]:
    """The same machine on a bad day."""
    facts = deepcopy(MONDAY)
    hot = smi.query(clocks_throttle_reasons__active="0x40", temperature__gpu="84", clocks__sm="1305 MHz")
    facts["gpus"] = nvidia.read_gpus(smi.query(7, temperature__gpu="33", power__draw="640.00 W") + hot)
    facts |= {"taken_at": "2026-12-01T08:00:00+00:00", "uptime_s": 586_400, "load_1min": 4.0, "nccl": "2.29.1"}
    facts["environment"] = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8", "NCCL_P2P_DISABLE": "1"}
    facts["processes"] = [{"pid": 77, "name": "python", "environment": {"CUDA_VISIBLE_DEVICES": "0"}}]
    return facts


def between(a: dict[str, Any], b: dict[str, Any], settings: tuple[dict[str, Any], ...] = ({}, {})) -> Difference:
    kept = [Kept(source=n, machine=m, settings=s) for n, m, s in zip("AB", (a, b), settings, strict=True)]
    return compare(kept[0], kept[1])


def test_causes_come_first_and_noise_apart() -> None:
    found = between(MONDAY, tuesday())
    assert [change.field for change in found.causes] == [
        "gpus.7.throttle_reasons",
        "environment.NCCL_P2P_DISABLE",
        "gpus.7.clocks.sm",
        "nccl",
        "gpus.7.temperature.gpu",
    ]
    assert found.causes[1].a == "not set"
    noise = {change.field for change in found.noise}
    assert {"load_1min", "uptime_s", "taken_at", "gpus.0.temperature.gpu", "gpus.0.power.draw"} <= noise
    assert found.only_in_a == found.only_in_b == ()


def test_the_pages() -> None:
    check("fingerprint.txt", "\n".join(lines(tuesday())) + "\n")
    check("fingerprint-diff.txt", "\n".join(diff_lines(between(MONDAY, tuesday()))) + "\n")


def test_processes_with_one_environment_are_told_once() -> None:
    ranks = [{"pid": pid, "name": "python", "environment": {"NCCL_ALGO": "Ring"}} for pid in (11, 12)]
    others = [{"pid": 13, "name": "sh", "environment": {}}, {"pid": 14, "unknown": "there is no such process"}]
    page = "\n".join(lines({**MONDAY, "processes": [ranks[0], *others, ranks[1]]}))
    assert page.endswith("""\
environment of 2 processes, as they were started: 11 python, 12 python
  NCCL_ALGO = Ring
environment of process 13, sh, as it was started
  none set
environment of process 14: unknown, there is no such process""")


def test_a_machine_like_itself() -> None:
    found = between(MONDAY, deepcopy(MONDAY))
    assert not found.causes and not found.noise
    assert "Nothing changed that would explain another speed." in diff_lines(found)


@pytest.mark.parametrize(
    ("change", "is_cause"),
    [
        ({"load_1min": 60.0}, True),
        ({"load_1min": 20.0}, False),
        ({"uptime_s": 40}, True),
        ({"commit": "ffff"}, True),
        ({"gpus": nvidia.read_gpus(smi.query(8, temperature__gpu="36"))}, False),
        ({"gpus": nvidia.read_gpus(smi.query(8, temperature__gpu="37"))}, True),
        ({"gpus": nvidia.read_gpus(smi.query(8, clocks__sm="1965 MHz"))}, False),
        ({"gpus": nvidia.read_gpus(smi.query(8, clocks_throttle_reasons__active="0x4"))}, False),
        ({"gpus": nvidia.read_gpus(smi.query(8, clocks_throttle_reasons__active="0x80"))}, True),
        ({"gpus": nvidia.read_gpus(smi.query(7))}, True),
        ({"something_new": 1}, False),
    ],
)
def test_a_change(change: dict[str, Any], is_cause: bool) -> None:
    assert bool(between(MONDAY, {**MONDAY, **change}).causes) is is_cause


def test_what_one_lacks_is_not_called_a_change() -> None:
    old = {name: MONDAY[name] for name in ("cpu", "cores", "os", "python", "torch", "gpus")}
    found = between(old, MONDAY)
    assert not found.causes and "nccl" in found.only_in_b
    assert any("whether it changed is not known" in line for line in diff_lines(found))


def test_settings_that_were_resolved_otherwise(tmp_path: Path) -> None:
    """A fingerprint with --url and a record of bench name the same settings alike."""
    taken, benched = tmp_path / "taken.json", tmp_path / "bench.jsonl"
    settings = {"engine": {"k": 2}, "control": {"costs": [1]}}
    known = {"server_engine": "outpace", "server_version": "0.1.0", "server_max_context": 100}
    taken.write_text(json.dumps({**MONDAY, "settings": {**settings, **known}}))
    server = {"engine": "outpace", "version": "0.1.0", "max_context": 100, "settings": {"engine": {"k": 4}}}
    record = {"schema": 1, "client": MONDAY, "server": server, "started_at": "now"}
    benched.write_text(json.dumps({"client": {**MONDAY, "cpu": "first"}}) + "\n" + json.dumps(record) + "\n")
    (change,) = compare(read(taken), read(benched)).causes
    assert (change.field, change.a, change.b) == ("settings.engine.k", 2, 4)


def test_a_servers_own_machine_is_judged_as_this_one_is() -> None:
    """What a server of ours says of itself among its settings: that time passed was no setting resolved otherwise."""
    engine = {"engine": {"k": 4}}
    first, later, worse = ({**engine, "fingerprint": machine} for machine in (MONDAY, deepcopy(MONDAY), tuesday()))
    moved = {"taken_at": "later", "uptime_s": 500_900, "load_1min": 3.4}
    moved["gpus"] = nvidia.read_gpus(smi.query(8, power__draw="640.00 W"))
    later["fingerprint"] |= moved
    found = between(MONDAY, MONDAY, (first, later))
    assert not found.causes and {change.field for change in found.noise} >= {"settings.fingerprint.taken_at"}
    bad = {change.field: change.why for change in between(MONDAY, MONDAY, (first, worse)).causes}
    assert bad["settings.fingerprint.nccl"] == "another library, with other kernels"
    assert "settings.fingerprint.gpus.7.throttle_reasons" in bad


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), ("", "holds no fingerprint"), ('{"cpu": 1}', "holds no"), ("[" * 9999, "holds no")],
)
def test_files_that_hold_none(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fingerprint", "--json"]) == 0
    taken = json.loads(capsys.readouterr().out)
    for name, facts in {"a": taken, "b": {**taken, "commit": "other"}}.items():
        (tmp_path / name).write_text(json.dumps(facts))
    assert main(["fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    assert [change["field"] for change in json.loads(capsys.readouterr().out)["causes"]] == ["commit"]
    assert main(["fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err
    for words in (["--url", "http://127.0.0.1:9"], ["--pid", "1"]):
        assert main(["fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "b"), *words]) == 2
        assert "takes no fingerprint of --url or --pid" in capsys.readouterr().err
    assert main(["fingerprint", "--url", "http://127.0.0.1:9"]) == 2
    assert "cannot reach" in capsys.readouterr().err
