"""The claim: N GPUs that share a model take little more than 1/N of one GPU's time. Prints one JSON line.

    python benchmarks/tensor_parallel.py                        llama-8b on 2 GPUs at batch 1 and 8, ~2 minutes
    python benchmarks/tensor_parallel.py --ranks 4 --batch 1 --k 3
    python benchmarks/tensor_parallel.py --shape tiny --device cpu --rounds 6
    python benchmarks/tensor_parallel.py --only-sums            what a layer's two sums cost, by kind; seconds
    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py   on ranks that are there already

Every rank runs the same cells in the same order on its share, and, as the thing to compare with, on a whole model of
its own; both are in every round. Sums over ranks are timed by themselves first, in and out of a graph: a layer has two.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from outpace.config import ResolvedConfig
from outpace.distributed import nccl
from outpace.distributed.group import ALONE, Group
from outpace.distributed.launcher import environment, launched
from outpace.distributed.rendezvous import device_of, join, leave, torchrun_store
from outpace.engine import calibrate
from outpace.engine.devices import default_prefill_chunk
from outpace.engine.runner import Runner
from outpace.lab.limits.rates import measure_rates
from outpace.lab.shapes.dense import SHAPES, random_models
from outpace.lab.shapes.weights import num_bytes_of
from outpace.lab.timing import bench_line
from outpace.lab.timing.bench_line import Cell, cells_of
from outpace.lab.timing.collectives import time_sums
from outpace.lab.timing.decoding import noise_pair
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.models.exchange import open_exchange
from outpace.models.sums import with_sums

MIN_ROUNDS = 6
"""Of the sums: fewer give no interval of 95%."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One round of a cell: medians, in seconds."""

    verify_s: float
    """The target's forward alone: a plain step where k is 0."""
    cycle_s: float


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    bench_line.add_grid(parser, k="1,3,7")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="GPUs that share the model (default 2)")
    parser.add_argument("--count", type=int, default=10, metavar="N", help="cycles of a cell a round (default 10)")
    parser.add_argument(
        "--tokens", type=bench_line.ints, default=(1, 4, 8, 64), metavar="N,…", help="rows of the collectives"
    )
    parser.add_argument("--only-sums", action="store_true", help="measure the collectives and nothing else")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if launched() is None:
        sys.exit(_start_ranks(args.ranks, sys.argv[1:] if argv is None else list(argv)))
    _run(args)


def _start_ranks(size: int, argv: list[str]) -> int:
    """This script once a rank, as torchrun would start it; the first one's stdout is ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *argv],
            env=os.environ | environment(rank, size, port),
            stdout=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(size)
    ]
    codes = [rank.wait() for rank in ranks]
    return next((code for code in codes if code), 0)


def _run(args: argparse.Namespace) -> None:
    here = launched()
    assert here is not None
    line = bench_line.Line("tensor_parallel", args)
    device, dtype = bench_line.place(args)
    device = device_of(device, here.local_rank, min(here.size, here.local_rank + 1))
    group = join(torchrun_store(), here.rank, here.size, device)
    say = bench_line.say if group.rank == 0 else lambda text: None
    hidden = SHAPES[args.shape]().hidden_size
    sums = _sums(args, group, device, hidden, dtype, say)
    group = with_sums(group, device)
    say(f"who gathers: {dict(group.sums)}")
    if args.only_sums:
        facts = {"ranks": group.size, "backend": dist.get_backend(), "nccl": _nccl(), "gathering": dict(group.sums)}
        if group.rank == 0:
            line.print(**facts, collectives=sums)
            sys.stdout.flush()
        leave()
        return
    rates = measure_rates(device)
    runners = {size: _runner(args, device, dtype, ranks) for size, ranks in ((group.size, group), (1, ALONE))}
    variants = [(size, cell) for cell in cells_of(args) for size in runners]

    def measure(variant: tuple[int, Cell]) -> Seen:
        size, cell = variant
        shape = cell.num_rows, cell.k, cell.context, args.count
        phases = calibrate.time_phases(runners[size], *shape)
        cycles = calibrate.time_cycles(runners[size], *shape)
        return Seen(median([phase["verify"] for phase in phases]), median(cycles))

    for variant in variants:
        say(f"warming up {variant}: {measure(variant)}")
    rounds = interleave(variants, args.rounds, measure, lambda done: say(f"round {done} of {args.rounds}"))
    measured = dict(zip(variants, rounds, strict=True))
    facts = {
        "ranks": group.size,
        "backend": dist.get_backend(),
        "nccl": _nccl(),
        "gathering": dict(group.sums),
        "collectives": sums,
        "rates": rates.as_dict(),
        "rank_weight_bytes": {size: _weight_bytes(runner) for size, runner in runners.items()},
        "cells": [_report(cell, measured, group.size) for cell in cells_of(args)],
        "graphs": {size: runner.describe() for size, runner in runners.items()},
    }
    if group.rank == 0:
        line.print(**facts)
        sys.stdout.flush()
    leave()


def _nccl() -> dict[str, Any]:
    version = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"version": version, "observed": nccl.observed()}


@torch.inference_mode()
def _sums(
    args: argparse.Namespace,
    group: Group,
    device: torch.device,
    hidden: int,
    dtype: torch.dtype,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """What a sum costs by kind, for each number of tokens."""
    exchange = open_exchange(group, device)
    if not isinstance(exchange, str):
        exchange.max_bytes = sys.maxsize
    found = []
    for num_tokens in args.tokens:
        measured = time_sums(group, exchange, device, num_tokens, hidden, dtype, max(MIN_ROUNDS, args.rounds))
        found.append({"tokens": num_tokens, "hidden": hidden, **measured})
        mode = "graph" if device.type == "cuda" else "eager"
        say(f"{num_tokens} x {hidden}: a layer's two sums, {mode}; fastest {measured['fastest'][mode]}")
        for name, kind in measured["kinds"].items():
            say(f"  {name:<10} {_layer_us(kind, mode)}")
    return found


def _layer_us(kind: dict[str, Any], mode: str) -> str:
    if "why_none" in kind:
        return str(kind["why_none"])
    at, ratio = kind[f"{mode}_us"], kind[f"{mode}_over_gather"]
    cost = f"{2 * at['center']:.2f} µs ({2 * at['low']:.2f} … {2 * at['high']:.2f})"
    return f"{cost}; with its norm {ratio['center']:.3f} of gathering ({ratio['low']:.3f} … {ratio['high']:.3f})"


def _runner(args: argparse.Namespace, device: torch.device, dtype: torch.dtype, group: Group) -> Runner:
    """Models of random weights, pages of noise, and what runs them."""
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab, group=group
    )
    longest = max(args.context) + 4 * (max(args.k) + 1) + calibrate.DRIFT
    pair = noise_pair(target.model, drafter, num_rows=max(args.batch), max_context=longest)
    page_size = pair.cache.page_size
    config = ResolvedConfig(
        k=max(args.k),
        control="fixed",
        page_size=page_size,
        prefill_chunk=default_prefill_chunk(device),
        max_rows=max(args.batch),
        max_context=longest,
        num_pages=pair.cache.keys_LNHD.shape[1] // page_size,
        tensor_parallel=group.size,
    )
    return Runner(pair, config)


def _weight_bytes(runner: Runner) -> int:
    """That one rank reads for a plain step: all but the embeddings."""
    target = runner.target
    return num_bytes_of([*target.layers, target.lm_head, target.norm])


def _report(cell: Cell, measured: dict[tuple[int, Cell], list[Seen]], size: int) -> dict[str, Any]:
    """One cell on all ranks and on one: times in milliseconds, ratios within rounds."""
    shared, alone = measured[size, cell], measured[1, cell]
    plain = measured[size, cell.plain]
    verify, verify_alone = [s.verify_s for s in shared], [s.verify_s for s in alone]
    return {
        "batch": cell.num_rows,
        "context": cell.context,
        "k": cell.k,
        "step_ms" if cell.k == 0 else "verify_ms": spread_ms(verify),
        "cycle_ms": spread_ms([s.cycle_s for s in shared]),
        "alone_ms": spread_ms(verify_alone),
        "alone_cycle_ms": spread_ms([s.cycle_s for s in alone]),
        "over_alone": ratio_as_dict(paired_ratio(verify, verify_alone)),
        "cycle_over_alone": ratio_as_dict(paired_ratio([s.cycle_s for s in shared], [s.cycle_s for s in alone])),
        "verify_over_plain": ratio_as_dict(paired_ratio(verify, [s.verify_s for s in plain])),
    }


if __name__ == "__main__":
    bench_line.run(main)
