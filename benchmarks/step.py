"""The claim: a plain step, and a verify of k+1 tokens, are close to what reading their bytes takes. Prints one JSON
line.

    python benchmarks/step.py                                   llama-8b at batch 1 and 8, ~1 minute on an H200
    python benchmarks/step.py --batch 1,4,16,64 --k 3,7 --context 512,8192
    python benchmarks/step.py --shape tiny --device cpu --rounds 6

The limit comes first: bytes of weights, keys and values over the copy rate of this device, measured in the same run, or
products over its matrix rate where that is longer. A verify fuses features for the drafter, and its limit holds that
too. All cells run once a round, and `verify_over_plain` is taken within rounds. A step is the target's forward alone;
`benchmarks/cycle.py` measures whole cycles.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from outpace import LLM
from outpace.engine import calibrate
from outpace.engine.devices import default_page_size
from outpace.lab.limits.cycle import Limits, limits_of
from outpace.lab.limits.rates import measure_rates
from outpace.lab.shapes.dense import random_llm
from outpace.lab.timing import bench_line
from outpace.lab.timing.bench_line import Cell, cells_of
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    bench_line.add_grid(parser)
    parser.add_argument("--count", type=int, default=10, metavar="N", help="forwards of a cell a round (default 10)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("step", args)
    device, dtype = bench_line.place(args)
    rates = measure_rates(device)
    bench_line.say(f"rates: {rates.as_dict()}")
    llm = _llm(args)
    assert llm.drafter is not None
    limits = limits_of(llm.target.config, llm.drafter.wiring, dtype, rates)
    cells = cells_of(args)

    def measure(cell: Cell) -> float:
        phases = calibrate.time_phases(llm.engine.runner, cell.num_rows, cell.k, cell.context, args.count)
        return median([phase["verify"] for phase in phases])

    for cell in cells:
        bench_line.say(f"warming up {cell}")
        measure(cell)
    rounds = interleave(cells, args.rounds, measure, lambda done: bench_line.say(f"round {done} of {args.rounds}"))
    measured = dict(zip(cells, rounds, strict=True))
    line.print(
        rates=rates.as_dict(),
        weight_bytes=limits.target.weights,
        cells=[_report(cell, measured, limits) for cell in cells],
        model=llm.describe(),
    )


def _llm(args: argparse.Namespace) -> LLM:
    """Just large enough for the largest cell."""
    device, dtype = bench_line.place(args)
    longest, most, page_size = (
        max(args.context) + (args.count + 4) * (max(args.k) + 1),
        max(args.batch),
        default_page_size(device),
    )
    return random_llm(
        args.shape,
        drafter=True,
        device=device,
        dtype=dtype,
        draft_vocab_size=args.draft_vocab,
        k=max(args.k),
        control="fixed",
        max_rows=most,
        max_context=longest,
        page_size=page_size,
        num_pages=most * -(-longest // page_size) + 1,
    )


def _report(cell: Cell, measured: dict[Cell, list[float]], limits: Limits) -> dict[str, Any]:
    """One cell: times and limits in milliseconds."""
    limit = limits.verify(cell.num_rows, cell.k, cell.context) + limits.fuse(cell.num_rows, cell.k)
    num_bytes = limits.target.num_bytes(cell.num_rows, cell.k + 1, cell.context)
    num_bytes += limits.fusion.weights if limits.fusion is not None and cell.k else 0
    plain = measured[cell.plain]
    return {
        "batch": cell.num_rows,
        "context": cell.context,
        "k": cell.k,
        "step_ms" if cell.k == 0 else "verify_ms": spread_ms(measured[cell]),
        "bytes": num_bytes,
        "bytes_limit_ms": significant(1e3 * num_bytes / limits.rates.copy_bytes_s),
        "limit_ms": significant(1e3 * limit),
        "fraction_of_limit": significant(limit / median(measured[cell])),
        "verify_over_plain": ratio_as_dict(paired_ratio(measured[cell], plain)),
    }


if __name__ == "__main__":
    bench_line.run(main)
