"""The claim: seconds after the weights are in memory the engine serves, common graphs captured. Prints one JSON line.

    python benchmarks/ready.py                  llama-8b, nothing compiled before, then again with what that compiled
    python benchmarks/ready.py --max-rows 128
    python benchmarks/ready.py --shape tiny --device cpu

Each start is a process of its own, and counts what compiling, measuring costs, capturing and the first answer take; the
first finds Triton's cache empty, the second finds what the first left in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from outpace import LLM, EngineConfig, SamplingParams
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing import bench_line

STARTS = ("nothing_compiled", "compiled_before")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    parser.add_argument("--max-rows", type=int, default=16, metavar="N", help="requests decoded together (default 16)")
    parser.add_argument("--k", type=int, default=4, metavar="N", help="most drafts a cycle (default 4)")
    parser.add_argument("--once", action="store_true", help="measure this process alone")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("ready", args)
    line.print(**(_start(args) if args.once else dict(_starts(argv))))


def _starts(argv: Sequence[str] | None) -> list[tuple[str, Any]]:
    """One process after another over one cache of compiled kernels."""
    flags = [sys.executable, str(Path(__file__)), *(sys.argv[1:] if argv is None else argv), "--once"]
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for name in STARTS:
            bench_line.say(f"starting: {name}")
            done = subprocess.run(
                flags, env=os.environ | {"TRITON_CACHE_DIR": cache}, stdout=subprocess.PIPE, text=True, check=False
            )
            if done.returncode == bench_line.WRONG:
                sys.exit(bench_line.WRONG)  # it said what
            done.check_returncode()
            line = json.loads(done.stdout)
            found.append((name, {key: line[key] for key in ("ready_s", "first_answer_s", "graphs", "calibration")}))
    return found


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """From weights in memory to a first answer."""
    device, dtype = bench_line.place(args)
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab
    )
    _wait(device)
    began = time.perf_counter()
    config = EngineConfig(k=args.k, max_rows=args.max_rows, max_context=min(16384, target.config.max_positions))
    llm = LLM.from_parts(target, drafter, config)
    _wait(device)
    ready = time.perf_counter()
    llm.generate([list(range(1, 201))], SamplingParams(max_tokens=8, ignore_eos=True))
    answered = time.perf_counter()
    described = llm.describe()
    return {
        "ready_s": round(ready - began, 3),
        "first_answer_s": round(answered - ready, 3),
        "graphs": described["graphs"],
        "calibration": {key: described["control"]["calibration"][key] for key in ("seconds", "rows_left_out")},
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    bench_line.run(main)
