"""Every script's main on a CPU with tiny shapes: one JSON line, whose figures follow from what was measured.

The machine's rates are made up, far above what any reaches: limits then are the same everywhere, and every measured
time lies above its limit. Figures are printed to five digits, so those that follow from each other agree to `CLOSE`.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from triton import knobs

from outpace import RequestStats
from outpace.engine import calibrate
from outpace.engine.runner import Runner
from outpace.lab.limits import rates
from outpace.lab.limits.rates import Rates
from outpace.lab.report.files import read
from outpace.lab.report.page import page
from outpace.lab.report.rank_line import Rank
from outpace.lab.shapes.dense import SHAPES

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
TINY = ["--shape", "tiny", "--device", "cpu", "--dtype", "float32", "--draft-vocab", "64"]
GRID = ["--batch", "1,2", "--k", "2,3", "--context", "32"]

CLOSE = 2e-4
COPY_BYTES_S, MATRIX_FLOPS_S = 7e13, 3e15

Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rates(copy_bytes_s=COPY_BYTES_S, matrix_flops_s=MATRIX_FLOPS_S)
    monkeypatch.setattr(rates, "measure_rates", lambda device: known)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_script(name: str, *argv: str) -> dict[str, Any]:
        exit_code = 0
        try:
            runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"](argv)
        except SystemExit as error:
            exit_code = error.code
        (text,) = capsys.readouterr().out.splitlines()
        line: dict[str, Any] = json.loads(text)
        assert line["benchmark"] == name
        assert line["machine"]["cores"] >= 1
        assert line["seconds"] >= 0.0
        assert exit_code == bool(line.get("num_failed")), "a claim that does not hold fails"
        return line

    return run_script


def verify_s(num_rows: int, k: int, context: int) -> float:
    """A made-up cost."""
    return 1e-3 * (10 + num_rows + k) + 1e-6 * context


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known times instead of measured ones."""

    def phases(runner: Runner, num_rows: int, k: int, context: int, count: int) -> list[dict[str, float]]:
        return [{"draft": 1e-3 * k, "verify": verify_s(num_rows, k, context), "accept": 5e-4}] * count

    def cycles(runner: Runner, num_rows: int, k: int, context: int, count: int) -> list[float]:
        return [verify_s(num_rows, k, context) + 1e-3 * k + 1e-3] * count

    monkeypatch.setattr(calibrate, "time_phases", phases, raising=False)
    monkeypatch.setattr(calibrate, "time_cycles", cycles, raising=False)


@pytest.mark.usefixtures("made_up")
def test_step(run: Run) -> None:
    line = run("step", *TINY, *GRID, "--rounds", "6")
    assert [(c["batch"], c["k"]) for c in line["cells"]] == [(b, k) for b in (1, 2) for k in (0, 2, 3)]
    config, itemsize = SHAPES["tiny"](), 4
    hidden, kv = config.hidden_size, config.num_kv_heads * config.head_dim
    layer = (hidden + 2 * kv) * hidden + hidden * hidden + 3 * hidden * config.intermediate_size + 2 * hidden
    weights = itemsize * (3 * layer + hidden + config.vocab_size * hidden)
    assert line["weight_bytes"] == weights
    for cell in line["cells"]:
        rows, k = cell["batch"], cell["k"]
        fusion = itemsize * 3 * hidden * hidden if k else 0
        num_bytes = weights + fusion + rows * itemsize * ((k + 1) * hidden + 32 * 3 * 2 * kv)
        assert cell["bytes"] == num_bytes
        assert cell["bytes_limit_ms"] == pytest.approx(1e3 * num_bytes / COPY_BYTES_S, rel=CLOSE)
        assert cell["limit_ms"] >= cell["bytes_limit_ms"]
        shown = cell["verify_ms" if k else "step_ms"]["median"]
        assert shown == pytest.approx(1e3 * verify_s(rows, k, 32))
        assert cell["fraction_of_limit"] == pytest.approx(cell["limit_ms"] / shown, rel=CLOSE)
        assert cell["verify_over_plain"]["median"] == pytest.approx(
            verify_s(rows, k, 32) / verify_s(rows, 0, 32), rel=CLOSE
        )
    assert line["rates"] == {"copy_gb_s": COPY_BYTES_S / 1e9, "matrix_tflops": MATRIX_FLOPS_S / 1e12}
    assert line["model"]["graphs"], "whether graphs were captured"


@pytest.mark.usefixtures("made_up")
def test_cycle(run: Run) -> None:
    line = run("cycle", *TINY, *GRID, "--rounds", "3", "--count", "3")
    assert [(c["batch"], c["k"]) for c in line["cells"]] == [(b, k) for b in (1, 2) for k in (0, 2, 3)]
    plain = {c["batch"]: c for c in line["cells"] if c["k"] == 0}
    for cell in line["cells"]:
        k, rows = cell["k"], cell["batch"]
        parts = {name: spread["median"] for name, spread in cell["parts_ms"].items()}
        assert parts["verify"] == pytest.approx(1e3 * verify_s(rows, k, 32))
        assert parts["draft"] == pytest.approx(k)
        assert parts["rest"] == pytest.approx(0.5)
        assert parts["host_gap"] == pytest.approx(cell["cycle_ms"]["median"] - cell["device_ms"]["median"], abs=1e-3)
        assert sum(parts.values()) == pytest.approx(cell["cycle_ms"]["median"], abs=1e-3)
        assert cell["fraction_of_limit"] == pytest.approx(cell["limit_ms"] / cell["cycle_ms"]["median"], rel=CLOSE)
        assert cell["verify_over_plain"]["median"] == pytest.approx(
            verify_s(rows, k, 32) / verify_s(rows, 0, 32), rel=CLOSE
        )
    assert all(cell["cycle_over_plain"]["median"] == 1.0 for cell in plain.values())
    assert set(line["graphs"]) == {f"batch {b}, k {k}" for b in (1, 2) for k in (0, 2, 3)}


@pytest.mark.parametrize("name", ["step", "cycle"])
def test_times_are_those_of_this_machine(run: Run, name: str) -> None:
    line = run(name, *TINY, "--batch", "2", "--k", "2", "--context", "32", "--rounds", "2", "--count", "3")
    plain, drafting = line["cells"]
    shown = ("step_ms", "verify_ms") if name == "step" else ("cycle_ms", "cycle_ms")
    assert 0.0 < plain["limit_ms"] < plain[shown[0]]["median"]
    assert 0.0 < drafting["limit_ms"] < drafting[shown[1]]["median"]
    if name == "cycle":
        assert all(drafting["parts_ms"][part]["median"] > 0.0 for part in ("draft", "verify", "accept"))
        assert plain["parts_ms"]["draft"]["median"] < drafting["parts_ms"]["draft"]["median"], "it drafts nothing"


@pytest.mark.usefixtures("made_up")
def test_never_slower(run: Run) -> None:
    line = run(
        "never_slower",
        *(*TINY, "--batch", "1,2", "--k", "1,3", "--context", "32", "--acceptance", "0,0.9"),
        *("--tokens", "12", "--settle", "12", "--rounds", "6"),
    )
    steady = [(c["batch"], c["acceptance"]) for c in line["cells"] if len(c["acceptance"]) < 4]
    assert steady == [(b, a) for b in (1, 2) for a in ("0", "0.9")]
    assert len(line["cells"]) == 7, "one change in mid-run for each batch, and one batch whose rows differ"
    for cell in line["cells"]:
        speed, over_plain, over_best = cell["tok_s"], cell["auto_over_plain"], cell["auto_over_best_fixed"]
        (fixed,) = set(speed) - {"auto", "plain"}
        assert cell["fixed_tok_s"][fixed] == max(cell["fixed_tok_s"].values())
        assert speed[cell["best_fixed"]] == max(value for name, value in speed.items() if name != "auto")
        assert over_plain["low"] <= over_plain["median"] <= over_plain["high"]
        good = over_plain["median"] >= 0.97 and over_plain["low"] >= 0.95 and over_best["median"] >= 0.95
        assert cell["passes"] is good
        assert min(cell["pages_held"].values()) >= cell["batch"] * 3
        assert cell["first_token_ms"]["auto"]["median"] > 0.0
    assert line["num_failed"] == sum(not cell["passes"] for cell in line["cells"])
    assert line["kv_pages"]["auto"] < line["kv_pages"]["plain"]


def test_end_to_end_with_random_weights(run: Run) -> None:
    line = run("end_to_end", *TINY, "--batch", "1,2", "--context", "32", "--max-tokens", "24", "--acceptance", "1")
    assert [batch["batch"] for batch in line["batches"]] == [1, 2]
    for batch in line["batches"]:
        assert batch["accept_length"] == batch["tokens_a_cycle"] == 4.0
        assert batch["efficiency"] == pytest.approx(batch["speedup"]["median"] / 4.0, rel=CLOSE)
        assert batch["speedup"]["low"] <= batch["speedup"]["median"] <= batch["speedup"]["high"]


def test_end_to_end_holds_the_speedup_against_all_cycles() -> None:
    """Control took six plain steps among them: an accept length of 2.5 was had in four of ten cycles."""
    script = runpy.run_path(str(SCRIPTS / "end_to_end.py"))
    stats = RequestStats(cycles=10, emitted=16, drafted_at=(4, 4), accepted_at=(4, 2), reused=0)
    answered = {name: script["Answered"](seconds, 32, stats) for name, seconds in (("plain", 3.2), ("speculative", 2))}
    script["_real_batch"].__globals__["_answer"] = lambda group, params, llm: answered[llm]
    args = script["parse"](["--rounds", "1"])
    row = script["_real_batch"](args, {name: name for name in answered}, [[1], [2]], 2)
    assert (row["accept_length"], row["tokens_a_cycle"]) == (2.5, 1.6)
    assert row["speedup"]["median"] == pytest.approx(1.6, rel=CLOSE)
    assert row["efficiency"] == pytest.approx(1.0, rel=CLOSE), "a cycle costs a plain step"


@pytest.mark.real_model
@pytest.mark.slow
def test_end_to_end_with_the_real_model(run: Run) -> None:
    line = run(
        "end_to_end", *("--device", "cpu", "--per-set", "1", "--max-tokens", "8", "--batch", "3", "--rounds", "1")
    )
    (batch,) = line["batches"]
    assert line["prompts"] == 3
    assert 1.0 <= batch["tokens_a_cycle"] <= batch["accept_length"] <= 5.0
    assert batch["efficiency"] == pytest.approx(batch["speedup"]["median"] / batch["tokens_a_cycle"], rel=CLOSE)
    assert batch["speedup"]["median"] == pytest.approx(
        batch["tok_s"]["speculative"] / batch["tok_s"]["plain"], rel=0.01
    )
    assert batch["speedup"]["low"] is None, "one group of prompts gives no interval"
    assert line["model"]["drafter_source"] is not None


@pytest.mark.usefixtures("made_up")
def test_two_rounds_pass_no_verdict(run: Run) -> None:
    line = run(
        "never_slower",
        *(*TINY, "--batch", "1", "--k", "2", "--context", "16", "--acceptance", "0.5", "--steady-only"),
        *("--tokens", "6", "--settle", "6", "--rounds", "2"),
    )
    (cell,) = line["cells"]
    assert cell["passes"] is None
    assert cell["auto_over_plain"]["low"] is None
    assert line["num_failed"] == 0


def test_prefill(run: Run) -> None:
    line = run("prefill", *TINY, "--tokens", "24,48", "--behind", "0,40", "--rounds", "6")
    found = [(prompt["tokens"], prompt["behind"]) for prompt in line["prompts"]]
    assert found == [(24, 0), (48, 0), (24, 32), (48, 32)], "only full pages are known"
    config = SHAPES["tiny"]()
    hidden, kv = config.hidden_size, config.num_kv_heads * config.head_dim
    layer = 2 * ((hidden + 2 * kv) * hidden + hidden * hidden + 3 * hidden * config.intermediate_size)
    for prompt in line["prompts"]:
        n, behind, ms = prompt["tokens"], prompt["behind"], prompt["first_token_ms"]
        pairs = n * (n + 1) // 2 + n * behind
        flops = n * 3 * layer + 2 * config.vocab_size * hidden + pairs * 4 * 3 * hidden
        assert prompt["tflops"] == pytest.approx(flops / ms["plain"]["median"] / 1e9, rel=CLOSE)
        assert prompt["tok_s"] == pytest.approx(n / ms["plain"]["median"] * 1e3, rel=CLOSE)
        norms = 7 * hidden
        weights = 4 * (3 * layer // 2 + norms + config.vocab_size * hidden)
        num_bytes = weights + behind * 4 * 3 * 2 * kv
        limit = max(num_bytes / line["rates"]["copy_gb_s"] / 1e6, flops / line["rates"]["matrix_tflops"] / 1e9)
        assert prompt["limit_ms"] == pytest.approx(limit, rel=CLOSE)
        assert prompt["fraction_of_limit"] == pytest.approx(limit / ms["plain"]["median"], rel=CLOSE)
        assert prompt["with_drafter_over_plain"]["median"] > 0.0
        assert ms["with a drafter"]["median"] > 0.0


@pytest.mark.slow
def test_products(run: Run) -> None:
    line = run(
        "products",
        *("--shape", "tiny", "--device", "cpu", "--dtype", "bfloat16", "--rounds", "1", "--rows", "1,100"),
        *("--products", "gate_up,output", "--tile", "64x64x2x4x1", "--tile", "64x32x2x4x1"),
    )
    named = [(cell["product"], cell["rows"]) for cell in line["cells"]]
    assert named == [(product, rows) for product in ("gate_up", "output") for rows in (1, 100)]
    one, hundred = line["cells"][2:]
    assert one["bytes"] == 64 * 64 * 2
    assert one["limit_us"] == pytest.approx(1e6 * one["bytes"] / COPY_BYTES_S, rel=CLOSE)
    assert set(one["times"]) == {"cublas", "ours", "64x64x2x4x1"} and one["tile"]["outputs"] == 64
    assert list(one["refused"]) == ["64x32x2x4x1"], "half a line of the cache is no tile"
    for times in one["times"].values():
        assert times["fraction_of_limit"] == pytest.approx(one["limit_us"] / times["us"]["median"], rel=CLOSE)
        assert times["over_cublas"]["low"] is None, "one round gives no interval"
    assert one["times"]["cublas"]["over_cublas"]["median"] == 1.0
    assert set(hundred["times"]) == {"cublas"} and hundred["tile"] is None, "between 64 and 128 cuBLAS multiplies"


def test_ready(run: Run) -> None:
    line = run("ready", *TINY, "--max-rows", "2")
    for start in ("nothing_compiled", "compiled_before"):
        assert line[start]["ready_s"] > 0.0
        assert line[start]["first_answer_s"] > 0.0
        assert line[start]["graphs"]["at_start"]["captured"] == 0, "a CPU has no graphs"


def test_server_cost(run: Run) -> None:
    line = run("server_cost", *TINY, "--rounds", "6", "--max-tokens", "12", "--k", "2", "--in-a-row", "2")
    first, tok_s = line["first_token_ms"], line["tok_s"]
    for name in ("added", "difference"):
        assert first[name]["low"] <= first[name]["median"] <= first[name]["high"]
    assert 0.0 < line["first_byte_ms"]["median"] < first["server"]["median"]
    assert first["no_server"]["median"] > 0.0
    parts = {name: spread["median"] for name, spread in line["parts_ms"].items()}
    assert set(parts) == {"outside", "read", "between", "engine", "token_ids"} and min(parts.values()) > 0.0
    assert line["tokens"] == 12 and min(tok_s.values()) > 0.0 < line["server_over_engine"]["median"]
    assert line["model"]["engine"]["simulate_acceptance"] == [0.8]


@pytest.mark.parametrize(
    "name", ["step", "cycle", "never_slower", "end_to_end", "prefill", "products", "ready", "server_cost"]
)
def test_help_shows_how_to_run_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"](["--help"])
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("step --device nowhere", "device is 'nowhere'"),
        ("mixture --device nowhere", "device is 'nowhere'"),
        ("prefill --device nowhere", "device is 'nowhere'"),
        ("ready --once --device nowhere", "device is 'nowhere'"),
        ("accept_length --device nowhere", "device is 'nowhere'"),
        ("products --shape tiny --device cpu", "the kernels need a GPU"),
        ("products --tile 3x3", "--tile '3x3' is not like"),
        ("mixture --device cpu", "--shape kimi-k2.5-tp8 needs a GPU, and the device is cpu"),
        ("mixture --layers 1", "error: --layers is 1; it must be at least 2"),
        ("mixture --context -5", "error: --context is -5; it must be at least 1"),
        ("mixture --rounds 0", "error: --rounds is 0; it must be at least 1"),
        ("mixture --k 0,2", "error: --k holds 0; it must hold numbers from 1 on"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *flags = words.split()
    path = SCRIPTS / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *flags])
    monkeypatch.setattr(knobs.runtime, "interpret", "--tile" in flags)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{name}.py: {message}")


def test_expert_reuse(run: Run) -> None:
    exact, lossy = run("expert_reuse", "--device", "cpu", "--reuse", "0,6", "--count", "2")["cells"]
    assert exact["same_choice"] == 1.0 and exact["divergence"] == 0.0
    assert lossy["divergence"] > 0.0 and lossy["experts_a_layer"] < exact["experts_a_layer"]
    assert lossy["first_token_moves"] < 1e-6


def test_mixture(run: Run, tmp_path: Path) -> None:
    flags = ["--shape", "tiny", "--layers", "3", "--device", "cpu", "--dtype", "bfloat16", "--context", "64"]
    line = run("mixture", *flags, "--k", "1,2", "--rounds", "2", "--count", "1", "--experts-of", "1,4",
               "--prefill", "80", "--pairs", "0,16")  # fmt: skip
    assert line["layers"] == {"all": 3, "with_experts": 2}
    blocks, hidden, width = 1, 64, 32
    assert line["expert_bytes"] == 4 * blocks * (2 * width + hidden) * (32 + 4)
    assert [cell["k"] for cell in line["cells"]] == [0, 1, 2]
    for cell in line["cells"]:
        assert 3 <= cell["experts_touched_a_layer"] <= 3 * (cell["k"] + 1)
        kv = 3 * (64 + cell["k"] + 1) * (16 + 8) * 2
        touched = 2 * cell["experts_touched_a_layer"] * line["expert_bytes"]
        assert cell["bytes"] == pytest.approx(line["other_bytes"] + touched + kv, abs=line["expert_bytes"] / 50)
        assert cell["limit_ms"] == pytest.approx(1e3 * cell["bytes"] / COPY_BYTES_S, rel=CLOSE)
        assert cell["graph"] is None and cell["eager"]["ms"]["median"] > 0
    alone, four = line["experts_alone"]
    assert alone["experts_touched"] == 3.0 and 3.0 < four["experts_touched"] <= 12.0
    of_all, of_16 = line["prefill"]
    assert of_all["pairs_of_a_tile"] == "as it comes" and of_16["pairs_of_a_tile"] == 16
    for many in (of_all, of_16):
        assert many["tokens"] == 80 and many["experts_touched"] == 24, "all there are"
        assert many["gflop_a_layer"] == pytest.approx(2 * 80 * 3 * 3 * hidden * width / 1e9, rel=CLOSE)
        assert many["mb_a_layer"] == pytest.approx((24 * line["expert_bytes"] + 2 * 80 * hidden * 2) / 1e6, rel=CLOSE)
        assert many["mb_of_pairs_a_layer"] == pytest.approx(2 * 240 * (3 * hidden + 2 * width) / 1e6, rel=CLOSE)
        limit_us = max(many["matrix_limit_us"], many["bytes_limit_us"])
        assert many["fraction_of_limit"] == pytest.approx(limit_us / many["us_a_layer"], rel=CLOSE)
    parts = line["parts"]["0"]
    assert {"experts", "attention", "routers", "head", "rest"} <= set(parts)
    stacked = sum(part["ms"] for part in parts.values() if part["stacks"])
    assert stacked == pytest.approx(line["cells"][0]["eager"]["ms"]["median"], rel=1e-3)
    limits_ms = sum(part["limit_ms"] for part in parts.values() if part["stacks"])
    assert 0.95 < limits_ms / line["cells"][0]["limit_ms"] < 1.01, "only the last norm is in no part"
    row = line["extrapolation"]["rows"][0]
    sums_ms = 2 * 3 * row["sum_us"] / 1e3
    plain_ms, verify_ms = (line["cells"][k]["eager"]["ms"]["median"] + sums_ms for k in (0, 1))
    assert row["break_even_accept_length"] == pytest.approx((verify_ms + 0.3) / plain_ms, rel=1e-3)
    assert "not measured" in line["extrapolation"]["note"]
    (tmp_path / "mixture.json").write_text(json.dumps(line))
    (drawn,) = read([tmp_path / "mixture.json"])
    assert isinstance(drawn.result, Rank) and "verify of 3" in page([drawn])
