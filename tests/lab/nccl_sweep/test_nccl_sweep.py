"""The sweep's logic on a measurer that knows what settings do, and one real measurement over gloo."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from outpace import EngineConfig
from outpace.cli.main import main
from outpace.cli.serve import read_config, start_of
from outpace.distributed.nccl import parse
from outpace.errors import EngineError
from outpace.lab.nccl_sweep.measure import Measured, Subject, measure
from outpace.lab.nccl_sweep.orders import Cell
from outpace.lab.nccl_sweep.settings import AXES, Setting, as_list
from outpace.lab.nccl_sweep.sweep import ROUNDS, Sweep, Verdict, log_ratio, used
from outpace.lab.nccl_sweep.toml import as_toml, summary
from outpace.lab.nccl_sweep.worker import said_by_nccl

TRIED = {
    "protocol": ({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}),
    "channels": ({"NCCL_MAX_NCHANNELS": "1"}, {"NCCL_MAX_NCHANNELS": "4"}),
    "threads": ({"NCCL_NTHREADS": "128"},),
}
Factor = Callable[[Setting, int], float | str]


def cells(factor: float) -> tuple[Cell, ...]:
    return (
        Cell(operation="gather", rows=1, mode="graph", us=10.0 * factor),
        Cell(operation="gather", rows=1, mode="eager", us=50.0),
        Cell(operation="all_reduce", rows=1, mode="graph", us=12.0),
        Cell(operation="all_reduce", rows=512, mode="eager", us=40.0 * factor),
        Cell(operation="all_reduce", rows=512, mode="graph", us=39.0),
    )


class Machine:
    """Takes ten seconds a measurement, the `count`th of which takes `factor` of the time, or fails for a reason."""

    def __init__(self, factor: Factor) -> None:
        self.now = 0.0
        self.asked: list[dict[str, str]] = []
        self._factor = factor

    def measure(self, setting: Setting, longest_s: float) -> Measured:
        self.asked.append(dict(setting))
        factor = self._factor(setting, len(self.asked))
        if isinstance(factor, str):
            self.now += longest_s
            return Measured(asked=setting, why_none=factor)
        self.now += 10.0
        return Measured(asked=setting, observed=(dict(setting),) * 2, said=({},) * 2, cells=cells(factor))

    def sweep(self, limit_s: float = 1000.0) -> Verdict:
        return Sweep(self.measure, TRIED, limit_s, lambda text: None, lambda: self.now).run()


def product(gains: Mapping[str, float]) -> Factor:
    """Settings that do not touch each other, and a little noise."""

    def factor(setting: Setting, count: int) -> float:
        found = 1.0 + 0.004 * (count % 3)
        for name, value in setting.items():
            found *= gains.get(f"{name}={value}", 1.0)
        return found

    return factor


def test_what_gains_alone_and_together_is_found_and_confirmed() -> None:
    machine = Machine(product({"NCCL_PROTO=LL": 0.8, "NCCL_MAX_NCHANNELS=4": 0.9, "NCCL_NTHREADS=128": 1.3}))
    verdict = machine.sweep()
    assert verdict.best == {"NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "4"}
    assert verdict.ratio is not None and verdict.ratio.num == ROUNDS and verdict.ratio.high < 0.0
    last = machine.asked[-2 * ROUNDS :]
    assert last.count({}) == ROUNDS and last.count(dict(verdict.best)) == ROUNDS, "in turns with the default"
    assert verdict.left_out == ()


def test_a_gain_that_another_setting_undoes_is_left_out() -> None:
    def factor(setting: Setting, count: int) -> float:
        if len(setting) == 2:
            return 1.2
        return 0.9 if setting.get("NCCL_PROTO") == "LL" else 0.95 if "NCCL_NTHREADS" in setting else 1.0

    assert Machine(factor).sweep().best == {"NCCL_PROTO": "LL"}


def test_without_a_sure_gain_the_default_stays() -> None:
    assert Machine(product({})).sweep().candidate == {}

    def lucky_once(setting: Setting, count: int) -> float:
        return 0.9 if setting and count < 6 else 1.0 + 0.05 * (-1) ** count

    verdict = Machine(lucky_once).sweep()
    assert verdict.candidate and verdict.best == {} and "the default stays" in summary(verdict)


def test_a_setting_that_fails_or_hangs_is_named_and_passed_over() -> None:
    def factor(setting: Setting, count: int) -> float | str:
        return "rank 1 had not answered in time" if "NCCL_PROTO" in setting else 0.8 if setting else 1.0

    machine = Machine(factor)
    verdict = machine.sweep()
    assert verdict.best and "NCCL_PROTO" not in verdict.best
    assert [m.why_none for m in verdict.measured if "NCCL_PROTO" in m.asked] == ["rank 1 had not answered in time"] * 2
    with pytest.raises(EngineError, match="without any setting: no network"):
        Machine(lambda setting, count: "no network").sweep()


def test_rounds_too_few_for_an_interval_say_so_and_are_json() -> None:
    """A setting under which ranks hang now and then leaves fewer pairs than an interval takes."""

    def hangs_later(setting: Setting, count: int) -> float | str:
        return "rank 1 had not answered in time" if setting and count % 2 else 0.8 if setting else 1.0

    verdict = Machine(hangs_later).sweep()
    assert verdict.candidate and verdict.ratio is not None and verdict.ratio.num < ROUNDS
    assert verdict.best == {} and "(too few rounds for an interval), which is not sure to be faster" in summary(verdict)
    found = verdict.as_dict()["candidate_over_default"]
    assert found["low"] is found["high"] is None and found["center"] < 1.0


def test_time_is_kept_for_the_last_stage_and_what_is_left_out_is_said() -> None:
    limit_s = 10.0 * (2 + 2 * ROUNDS)
    machine = Machine(product({"NCCL_PROTO=LL": 0.8}))
    verdict = machine.sweep(limit_s)
    assert machine.now <= limit_s
    assert verdict.best == {"NCCL_PROTO": "LL"}, "the one that there was time for"
    assert len(verdict.left_out) == 4 and verdict.left_out[0] == "protocol: NCCL_PROTO=Simple"
    assert "raise --time-limit" in summary(Machine(product({})).sweep(limit_s=30.0))


def test_only_what_serving_uses_counts() -> None:
    assert set(used(cells(1.0))) == {("gather", 1, "graph"), ("all_reduce", 512, "eager")}
    assert log_ratio(cells(0.5), cells(1.0)) == pytest.approx(-0.6931, abs=1e-4)
    eager = tuple(cell for cell in cells(1.0) if cell.mode == "eager")
    assert set(used(eager)) == {("gather", 1, "eager"), ("all_reduce", 512, "eager")}


@pytest.mark.parametrize("gains, nccl", [({"NCCL_PROTO=LL": 0.8}, ("NCCL_PROTO=LL",)), ({}, ())])
def test_serve_takes_the_file(gains: dict[str, float], nccl: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "nccl.toml"
    path.write_text(as_toml(Machine(product(gains)).sweep(), 2, "outpace tune-nccl model --tensor-parallel 2"))
    assert tomllib.loads(path.read_text())["nccl"] == list(nccl)
    settings = read_config(path)
    assert start_of({"model": "smollm2", **settings}).options == {"tensor_parallel": 2, "nccl": nccl}
    assert EngineConfig(**settings).nccl == nccl


def test_axes_are_settings_that_the_engine_takes() -> None:
    for settings in AXES.values():
        for setting in settings:
            assert parse(as_list(setting)) == setting


def test_what_nccl_says_it_read_is_found_in_its_log() -> None:
    log = (
        "box:7:9 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
        "box:7:9 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 4.\n"
        "box:7:9 [0] NCCL INFO NCCL_DEBUG_SUBSYS set by environment to ENV.\n"
    )
    assert said_by_nccl(log) == {"NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "4"}


def test_processes_are_started_with_the_setting_and_say_what_they_see() -> None:
    subject = Subject(size=2, device="cpu", rows=(1, 100), hidden=64, dtype="float32")
    found = measure(subject, {"NCCL_PROTO": "LL"}, 250.0)
    assert found.why_none is None
    assert [seen["NCCL_PROTO"] for seen in found.observed] == ["LL", "LL"]
    operations = [("gather", 1), ("all_reduce", 1), ("gather", 100), ("all_reduce", 100)]
    assert [(cell.operation, cell.rows) for cell in found.cells] == operations
    assert all(cell.mode == "eager" and cell.us > 0 for cell in found.cells)
    late = measure(subject, {}, 0.01)
    assert late.why_none == "rank 0 had not answered in time" and late.seconds < 60.0


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "tune-nccl needs GPUs"),
        (["--tensor-parallel", "1"], "--tensor-parallel is 1; it must lie in 2 … 64"),
        (["--tp", "3", "--dry-run"], "num_attention_heads is 4, which 3 ranks cannot share evenly"),
        (["--dry-run", "--out", "x.toml"], "leave --out out"),
        (["--dry-run", "--rows", "4,x"], "--rows is '4,x'"),
        (["--time-limit", "0"], "--time-limit is 0"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["tune-nccl", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_gives_json_with_what_was_asked_for_and_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    machine = Machine(product({"NCCL_PROTO=LL": 0.8}))
    monkeypatch.setattr("outpace.cli.tune_nccl.AXES", {"protocol": ({"NCCL_PROTO": "LL"},)})
    monkeypatch.setattr("outpace.cli.tune_nccl.measure", lambda subject, *given: machine.measure(*given))
    assert main(["tune-nccl", str(tmp_path), "--dry-run", "--rows", "1,512", "--dtype", "float32", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["best"] == {"NCCL_PROTO": "LL"} and found["hidden"] == 64 and found["backend"] == "gloo"
    assert found["candidate_over_default"]["high"] < 1.0 and found["rounds"] == ROUNDS
    tried = found["measured"][1]
    assert tried["asked"] == tried["ranks"][1]["observed"] == {"NCCL_PROTO": "LL"}
    assert "NCCL_PROTO=LL: 0.80" in printed.err
