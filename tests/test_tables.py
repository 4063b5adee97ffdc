"""Results of scripts/measure as a page: every kind of line has its rows, and what is something else is refused."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "tables.py"
TABLES = runpy.run_path(str(SCRIPT))
COMMANDS: dict[str, str] = TABLES["commands"]()


def spread(median: float, width: float = 0.01) -> dict[str, float]:
    return {"median": median, "low": median - width, "high": median + width, "p5": median, "p95": median}


def cell(batch: int, k: int, ms: float, over: float) -> dict[str, Any]:
    """As step.py and cycle.py have them."""
    times = {"step_ms" if k == 0 else "verify_ms": spread(ms), "cycle_ms": spread(ms)}
    idle = {"device": 0.1, "between_cycles": 0.004, "cycles": 20}
    shared = {"batch": batch, "context": 1024, "k": k, "fraction_of_limit": 0.874, "idle": idle}
    return shared | times | {"verify_over_plain": spread(over)}


def chosen(batch: int, acceptance: str, plain: float, passes: bool) -> dict[str, Any]:
    """As never_slower.py has them."""
    ratios = {"auto_over_plain": spread(plain), "auto_over_best_fixed": spread(1.002)}
    return {"batch": batch, "context": 512, "acceptance": acceptance, "passes": passes} | ratios


OURS, CUBLAS = ({"us": spread(us), "fraction_of_limit": share} for us, share in ((14.0, 0.84), (16.0, 0.74)))
GRAPH = {"ms": spread(5.25), "fraction_of_limit": 0.41, "over_plain": spread(1.142)}
FACTS: dict[str, dict[str, Any]] = {
    "step": {"cells": [cell(1, 0, 4.05, 1.0), cell(1, 7, 4.2, 1.042)]},
    "step-1b": {"cells": [cell(1, 0, 0.88, 1.0), cell(1, 7, 0.95, 1.085)]},
    "products": {
        "cells": [
            {"product": "qkv", "rows": 1, "times": {"ours": OURS, "cublas": CUBLAS}},
            {"product": "qkv", "rows": 96, "times": {"cublas": CUBLAS}},
        ]
    },
    "mixture-prefill": {
        "prefill": [
            {"tokens": 2048, "pairs_of_a_tile": "as it comes", "us_a_layer": 1179.0, "fraction_of_limit": 0.248}
        ]
    },
    "cycle": {"cells": [cell(1, 3, 4.79, 1.0), cell(8, 0, 4.38, 1.0)]},
    "cycle-rested": {"cells": [cell(128, 0, 8.9, 1.0)]},
    "never-slower-1": {"cells": [chosen(1, "0", 0.998, True), chosen(1, "0.95", 4.979, True)]},
    "never-slower-64": {"cells": [chosen(64, "0", 0.962, False), chosen(64, "0.9 and 0.1 in one batch", 1.34, True)]},
    "end-to-end-real": {
        "batches": [
            {"batch": 1, "tok_s": {"plain": 1432.4, "speculative": 2976.6}, "speedup": spread(2.08),
             "accept_length": 2.89, "efficiency": 0.72}
        ]
    },
    "ready": {"nothing_compiled": {"ready_s": 15.73}, "compiled_before": {"ready_s": 10.7}},
    "prefill": {
        "prompts": [{"tokens": 8192, "first_token_ms": {"plain": spread(239.7)}, "fraction_of_limit": 0.69}]
    },
    "server-cost-awake": {"first_token_ms": {"added": spread(0.93)}, "server_over_engine": spread(0.998)},
    "mixture": {
        "layers": {"all": 61},
        "cells": [{"k": 0, "graph": GRAPH}, {"k": 2, "graph": GRAPH}],
        "experts_alone": [{"tokens": 8, "mb_a_layer": 184.3, "over_100_mb": True, "share_of_copy_rate": 0.71}],
    },
}  # fmt: skip
MACHINE = {
    "commit": "0123456789ab", "taken_at": "2026-12-01T00:00:00+00:00", "torch": "2.11.0", "triton": "3.6.0",
    "gpus": [{"name": "NVIDIA H200"}],
}  # fmt: skip


def line_of(name: str, **changes: Any) -> dict[str, Any]:
    """What a command would print, with some of its settings changed."""
    _, script, *flags = shlex.split(COMMANDS[name])
    settings = vars(runpy.run_path(str(ROOT / script))["parse"](flags)) | changes
    return {"benchmark": Path(script).stem, "settings": settings, "machine": MACHINE} | FACTS[name]


def written(folder: Path, name: str, line: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(line))


def test_every_kind_of_line_has_its_rows(tmp_path: Path) -> None:
    for name in FACTS:
        written(tmp_path, name, line_of(name))
    (tmp_path / "step-long.json").write_text("")
    page: str = TABLES["main"](tmp_path)
    for row in (
        "| llama-8b, batch 1, context 1,024: plain step; share of its limit | 4.050 ms; 87.4% |  |",
        "| llama-8b, batch 1, context 1,024: verify of 8 ÷ plain step | 1.042 (1.032 … 1.052) | ≤ 1.05 |",
        "| llama-1b, batch 1, context 1,024: plain step; share of its limit | 0.880 ms; 87.4% | ≥ 65% |",
        "| llama-1b, batch 1, context 1,024: verify of 8 ÷ plain step | 1.085 (1.075 … 1.095) |  |",
        "| llama-8b, batch 1, context 1,024: cycle of 3 drafts; share of its limit | 4.790 ms; 87.4% | ≤ 5.2 ms |",
        "| llama-8b, batch 1, context 1,024: cycle of 3 drafts: the device idles before the next | 0.4% | ≤ 2% |",
        "| llama-8b, batch 128, context 1,024 after a rest: plain step; share of its limit | 8.900 ms; 87.4% | ≥ 85% |",
        "| llama-8b, qkv, 1 row: ours; share of its limit | 14.0 µs; 84.0% |  |",
        "| llama-8b, qkv, 1 row: cuBLAS; share of its limit | 16.0 µs; 74.0% |  |",
        "| llama-8b, qkv, 96 rows: cuBLAS, which is taken; share of its limit | 16.0 µs; 74.0% |  |",
        "| kimi-k2.5-tp8: experts of 2,048 tokens, pairs of a tile as it comes; a layer, share of its limit "
        "| 1,179 µs; 24.8% |  |",
        "| k chosen by the engine ÷ an engine without a drafter; acceptance | 1 × 512 | 64 × 512 |",
        "| 0 | 0.998 (0.988) | 0.962 (0.952) |",
        "| 0.95 | 4.979 (4.969) |  |",
        "| 0.9 and 0.1 in one batch |  | 1.340 (1.330) |",
        "| smollm2, batch 1: plain → with drafts | 1,432 → 2,977 tok/s; 2.08 (2.07 … 2.09) at accept length 2.89, "
        "0.720 of it | ≥ 0.60 |",
        "| llama-8b: ready after weights are in memory, nothing compiled | 15.7 s | ≤ 20 s |",
        "| llama-8b: a prompt of 8,192 tokens to its first token; share of its limit | 239.7 ms; 69.0% | ≥ 60% |",
        "| llama-8b, in a row, cores awake: added to a first token | 0.93 (0.92 … 0.94) ms | ≤ 1 ms |",
        "| kimi-k2.5-tp8, 61 layers: verify of 3 ÷ plain step | 1.142 (1.132 … 1.152) | ≤ 1.6 |",
        "| kimi-k2.5-tp8, 61 layers: experts of 8 tokens, 184 MB a layer: share of the copy rate | 71.0% | ≥ 70% |",
    ):
        assert f"\n{row}\n" in page, row
    assert "3 of 4 cells reach it" in page.replace("\n", " ")
    by = "By `python benchmarks/step.py` (GPU), `python benchmarks/step.py --shape llama-1b` (GPU); NVIDIA H200; torch"
    assert f"{by} 2.11.0, Triton 3.6.0; 0123456789ab of 2026-12-01.\n" in page


def test_what_was_not_measured_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "ready", line_of("ready"))
    assert re.findall("^## .*", TABLES["main"](tmp_path), re.M) == ["## Starting, and prompts"]
    said = capsys.readouterr().err
    left_out = said.removeprefix("not measured, and left out: ").strip().split(", ")
    assert left_out == [name for name in COMMANDS if name != "ready"]


def test_every_command_is_in_a_table() -> None:
    shown = [name for _, names, _ in TABLES["SECTIONS"] for name in names]
    assert sorted(shown) == sorted(COMMANDS)


def test_flags_that_came_later_are_as_if_not_given(tmp_path: Path) -> None:
    line = line_of("cycle")
    del line["settings"]["rest"]
    written(tmp_path, "cycle", line)
    assert "cycle of 3 drafts" in TABLES["main"](tmp_path)
    written(
        tmp_path, "cycle-rested", line | {"settings": line["settings"] | {"batch": [32, 128], "k": [3], "count": 5}}
    )
    with pytest.raises(
        Exception, match=r"cycle-rested.json is not what .*--rest 0.5` prints: it is of cycle, rest 0.0"
    ):
        TABLES["main"](tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(line_of("mixture", layers=6)), "step.json is not what .*: it is of mixture, .*layers 6"),
        (json.dumps(line_of("cycle")), "step.json is not what .*: it is of cycle"),
        (json.dumps(line_of("step", rounds=5)), "step.json is not what .*: it is of step, rounds 5"),
        ('{"benchmark": "step", ', "step.json is no line of a benchmark: JSONDecodeError"),
        ('{"benchmark": "step"}', "step.json is no line of a benchmark: KeyError: 'settings'"),
        ("[]", "step.json is no line of a benchmark: TypeError"),
        ("", "holds no results of scripts/measure"),
    ],
)
def test_what_is_refused_leaves_the_page_as_it_was(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "step.json").write_text(text)
    page = tmp_path / "measured.md"
    page.write_text("as it was")
    ran = subprocess.run([sys.executable, SCRIPT, tmp_path, page], capture_output=True, text=True)
    assert ran.returncode == 1 and re.search(message, ran.stderr) and page.read_text() == "as it was"
    assert len(ran.stderr.splitlines()) == 1


def test_the_page_is_written(tmp_path: Path) -> None:
    written(tmp_path, "step", line_of("step"))
    page = tmp_path / "measured.md"
    subprocess.run([sys.executable, SCRIPT, tmp_path, page], check=True, capture_output=True)
    assert page.read_text(encoding="utf-8") == TABLES["main"](tmp_path)


def test_the_page_is_of_commands_that_there_are() -> None:
    """Of those that the script would write."""
    page = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    assert page.startswith(TABLES["HEAD"])
    assert set(re.findall(r"`(python benchmarks/[^`]+)` \(GPU\)", page)) <= set(COMMANDS.values())
