"""The script that starts ranks of its own, on a CPU: one JSON line, from the first of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tensor_parallel.py"


def test_two_ranks_give_one_line() -> None:
    argv = (
        "--shape tiny --device cpu --dtype float32 --draft-vocab 64 --batch 1 --k 2 --context 32 --rounds 1 --count 1"
    )
    command = [sys.executable, str(SCRIPT), *argv.split(), "--tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (text,) = done.stdout.splitlines()
    line = json.loads(text)
    assert line["benchmark"] == "tensor_parallel" and line["ranks"] == 2 and line["backend"] == "gloo"
    (sums,) = line["collectives"]
    assert set(sums["kinds"]) == {"gather", "all-reduce"}
    for kind in sums["kinds"].values():
        assert kind["eager_us"]["low"] <= kind["eager_us"]["center"] <= kind["eager_us"]["high"]
    assert sums["kinds"]["gather"]["eager_over_gather"]["center"] == 1.0
    assert sums["fastest"]["eager"] in sums["kinds"]
    assert line["gathering"]["why_not_symmetric"] == "there is no symmetric memory without GPUs"
    shared, alone = (line["rank_weight_bytes"][size] for size in ("2", "1"))
    assert 0.5 <= shared / alone < 0.51, "all but the norms is cut in two"
    assert [cell["k"] for cell in line["cells"]] == [0, 2]
    plain, verify = line["cells"]
    assert plain["verify_over_plain"]["median"] == 1.0
    ratio = verify["verify_ms"]["median"] / verify["alone_ms"]["median"]
    assert abs(verify["over_alone"]["median"] / ratio - 1) < 0.01
