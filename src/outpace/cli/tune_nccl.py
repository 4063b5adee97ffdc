"""`outpace tune-nccl MODEL`: the settings of NCCL that bring this model's parts together fastest on these GPUs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from outpace.cli.options import DTYPE_HELP, MODEL_HELP, add_json_flag, check_writable, new_parser, write
from outpace.engine.devices import resolve_device, resolve_dtype
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.nccl_sweep.measure import Subject, measure
from outpace.lab.nccl_sweep.settings import AXES
from outpace.lab.nccl_sweep.sweep import Sweep, Verdict
from outpace.lab.nccl_sweep.toml import as_toml, summary
from outpace.models.registry import describe_target
from outpace.models.shares import check_target
from outpace.models.source import locate

SUMMARY = "settings of NCCL for this model on these GPUs, measured, as a file for serve"
DESCRIPTION = """
Times the collectives of a model that is cut over several GPUs, in and out of a graph, under NCCL's protocols,
algorithms, channels, P2P levels and threads. Every setting is measured in fresh processes, since NCCL reads its
environment once, and counts only if each of them sees what was asked for. The best values are then tried together, and
the best set against the default in six rounds: it is written only if it is faster for sure.

Up to some size ranks share memory and need no NCCL (`sums` in `outpace serve`, measured at its start); what is tuned
here is for larger messages, and for GPUs that cannot share memory.

examples:
  outpace tune-nccl ./my-model --tensor-parallel 2 --out nccl.toml
  outpace serve ./my-model --config nccl.toml
  outpace tune-nccl ./my-model --tp 8 --rows 1,4,32,2048 --time-limit 1200 --json
  outpace tune-nccl smollm2 --tp 3 --dry-run    the same steps over gloo on a CPU, where settings change nothing
"""
ROWS = "1,4,16,64,512"
MAX_ROWS, MAX_RANKS, MAX_SECONDS = 1 << 20, 64, 86_400.0


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = new_parser(subparsers, "tune-nccl", SUMMARY, DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--tensor-parallel", "--tp", type=int, default=2, metavar="N", help="ranks that share the model (default 2)"
    )
    parser.add_argument("--dtype", default="auto", help=DTYPE_HELP)
    parser.add_argument("--rows", default=ROWS, metavar="N,…", help=f"tokens of a message (default {ROWS})")
    parser.add_argument(
        "--time-limit", type=float, default=600.0, metavar="X", help="seconds for all of it (default 600)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the best set there, for serve's --config")
    parser.add_argument("--dry-run", action="store_true", help="go through it over gloo, without GPUs or a file")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Sweeps, prints, and writes the file."""
    subject = _subject(args)
    check_writable(args.out)
    asked = f"outpace tune-nccl {args.model} --tensor-parallel {subject.size}"
    about = f"{asked}, {subject.dtype}, hidden size {subject.hidden}"
    sweep = Sweep(partial(measure, subject), AXES, args.time_limit, lambda text: print(text, file=sys.stderr))
    verdict = sweep.run()
    if args.out is not None:
        write(args.out, as_toml(verdict, subject.size, about))
    _print(args, subject, verdict)
    return 0


def _print(args: argparse.Namespace, subject: Subject, verdict: Verdict) -> None:
    if not args.json:
        print(summary(verdict))
        if verdict.left_out:
            print(f"left out for want of time: {'; '.join(verdict.left_out)}; raise --time-limit")
        if args.out is not None:
            print(f"written to {args.out}: outpace serve {args.model} --config {args.out}")
        return
    found = {
        "command": "tune-nccl",
        "model": args.model,
        "ranks": subject.size,
        "backend": "nccl" if subject.device == "cuda" else "gloo",
        "dry_run": args.dry_run,
        "rows": list(subject.rows),
        "hidden": subject.hidden,
        "dtype": subject.dtype,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        "written": None if args.out is None else str(args.out),
        **verdict.as_dict(),
        "machine": machine(),
    }
    print(json.dumps(found))


def _subject(args: argparse.Namespace) -> Subject:
    """What is to be measured.

    Raises:
        ConfigError: there are no GPUs for it, or a value is out of its range.
    """
    ranks = args.tensor_parallel
    if not 2 <= ranks <= MAX_RANKS:
        raise ConfigError(f"--tensor-parallel is {ranks}; it must lie in 2 … {MAX_RANKS}")
    if not 1.0 <= args.time_limit <= MAX_SECONDS:
        raise ConfigError(f"--time-limit is {args.time_limit:g}; it must lie in 1 … {MAX_SECONDS:g} seconds")
    if args.dry_run and args.out is not None:
        raise ConfigError("--dry-run measures gloo, whose figures say nothing of NCCL: leave --out out")
    device = "cpu" if args.dry_run else resolve_device("auto").type
    if device != "cuda" and not args.dry_run:
        raise ConfigError(
            "tune-nccl needs GPUs, and there is none here: NCCL runs on nothing else; --dry-run goes through the same "
            "steps over gloo"
        )
    config = describe_target(locate(args.model)).config
    check_target(config, ranks)
    dtype = resolve_dtype(args.dtype, resolve_device(device))
    return Subject(
        size=ranks,
        device=device,
        rows=_rows(args.rows),
        hidden=config.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
    )


def _rows(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1 or found[-1] > MAX_ROWS:
        raise ConfigError(f"--rows is {text!r:.60}; it must be numbers from 1 to {MAX_ROWS}, as {ROWS}")
    return found
