"""The claim: accept length on prompts that nobody trained on. Prints one JSON line.

    python benchmarks/accept_length.py                          the shipped drafter, k 4, all three sets, ~20 minutes
    python benchmarks/accept_length.py --limit 20 --greedy-only
    python benchmarks/accept_length.py --drafter runs/my-drafter --device cuda --max-rows 64

Every set is answered greedily and at temperature 0.8; `loops` in the report says how many answers fell into a loop, and
each figure comes with and without them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from outpace import SamplingParams
from outpace.cli import options
from outpace.fingerprint import machine
from outpace.lab.timing import bench_line
from outpace.lab.workload.acceptance import SetReport, measure_set, overall
from outpace.lab.workload.eval_sets import SETS, load

TEMPERATURE, SEED = 0.8, 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_model_flags(parser, model="smollm2", skip=("control",))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="which sets")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each set, spread over it (default all)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer (default 256)")
    parser.add_argument("--second-turns", action="store_true", help="MT-Bench: ask the second question too")
    parser.add_argument("--greedy-only", action="store_true", help="leave out temperature 0.8")
    return parser.parse_args()


def main() -> None:
    args = parse()
    began = time.perf_counter()
    llm = options.load_llm(args, control="fixed")
    temperatures = (0.0,) if args.greedy_only else (0.0, TEMPERATURE)
    reports: dict[float, list[SetReport]] = {temperature: [] for temperature in temperatures}
    for name in args.sets:
        prompts = load(name, args.limit)
        for temperature in temperatures:
            print(f"{name} at temperature {temperature}", file=sys.stderr)
            params = SamplingParams(max_tokens=args.max_tokens, temperature=temperature, seed=SEED)
            report = measure_set(llm, prompts, params, second_turns=args.second_turns, progress=sys.stderr.isatty())
            reports[temperature].append(report)
    greedy = reports[0.0]
    print(
        json.dumps(
            {
                "benchmark": "accept_length",
                "k": llm.config.k,
                "max_tokens": args.max_tokens,
                "accept_length_greedy": round(overall(greedy), 4),
                "accept_length_greedy_without_loops": round(overall(greedy, without_loops=True), 4),
                "sets": [report.as_dict() for temperature in temperatures for report in reports[temperature]],
                "seconds": round(time.perf_counter() - began, 1),
                "model": llm.describe(),
                "machine": machine(),
            }
        )
    )


if __name__ == "__main__":
    bench_line.run(main)
