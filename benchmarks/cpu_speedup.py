"""The claim: on a CPU, speculative decoding is faster than the fastest plain decoding. Prints one JSON line.

    python benchmarks/cpu_speedup.py                    four prompts of each evaluation set, ~6 minutes on two cores
    python benchmarks/cpu_speedup.py --per-set 10 --max-tokens 128

The same measurement as `outpace demo`, on prompts of MT-Bench, HumanEval and GSM8K, and with the engine choosing k by
itself, as it does by default: mirrored order in one run, the speedup over the fastest plain number format with its
confidence interval, and transformers' own generate beside it.
"""

from __future__ import annotations

import argparse
import json
import sys

from outpace import Chunk
from outpace.cli import options
from outpace.cli.status import Status
from outpace.lab.demo.contenders import ENGINE
from outpace.lab.demo.run import DemoSettings, run_demo
from outpace.lab.timing import bench_line
from outpace.lab.timing.answer import Timing
from outpace.lab.workload.eval_sets import SETS, load

LONGEST_S = 24 * 3600.0
"""A figure that is published is not cut down, however long it takes."""


class Quiet:
    """Watches a measurement and shows only how far it is."""

    def __init__(self) -> None:
        self._status = Status(sys.stderr)

    def begin(self, prompt: str, place: str) -> None:
        self._status.show(f"checking losslessness: prompt {place}, {prompt[:60]!r}")

    def chunk(self, who: str, chunk: Chunk) -> None:
        """The answers are not shown."""

    def end(self, who: str, timing: Timing) -> None:
        """The first pass is not the one that is reported."""

    def progress(self, text: str) -> None:
        self._status.show(text)

    def warn(self, text: str) -> None:
        self._status.clear()
        print(f"! {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_model_flags(parser, model="smollm2", skip=tuple(ENGINE))
    parser.add_argument("--per-set", type=int, default=4, metavar="N", help="prompts of each set (default 4)")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="longest answer (default 96)")
    return parser.parse_args()


def main() -> None:
    args = parse()
    prompts = [prompt.user for name in SETS for prompt in load(name, args.per_set)]
    llm = options.load_llm(args, **{**ENGINE, "control": "auto"})
    report = run_demo(llm, prompts, DemoSettings(max_tokens=args.max_tokens, time_limit=LONGEST_S), Quiet())
    print(json.dumps({"benchmark": "cpu_speedup", **report.as_dict()}))


if __name__ == "__main__":
    bench_line.run(main)
