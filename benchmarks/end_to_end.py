"""The claim: answers come faster with the drafter, by how much, and how near to what cycles bring. One JSON line.

    python benchmarks/end_to_end.py                        smollm2 and its drafter, real prompts, ~3 minutes on an H200
    python benchmarks/end_to_end.py --shape llama-8b       random weights, simulated acceptance, k = 3, ~1 minute
    python benchmarks/end_to_end.py --per-set 2 --max-tokens 16 --batch 1

Without --shape, prompts of MT-Bench, HumanEval and GSM8K are answered in groups of `--batch`, from the prompts' ids to
the last token, plainly and speculatively in mirrored order. With --shape, rows decode behind `--context` tokens in
windows of equally many tokens. `tokens_a_cycle` is of all cycles, the plain steps that control takes among them, and
`efficiency` is speedup ÷ that: 1 is a cycle that costs one plain step. `accept_length` is of the cycles that drafted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from outpace import LLM, RequestStats, SamplingParams
from outpace.lab.intervals.interval import Interval
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing import bench_line
from outpace.lab.timing.decoding import Decoder, noise_pair
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict
from outpace.lab.timing.samples import Sample, speed_ratio, total_tok_s
from outpace.lab.workload.eval_sets import SETS, load
from outpace.lab.written import significant

PLAIN, SPECULATIVE = "plain", "speculative"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__, shape=None, rounds=2)
    parser.add_argument("--model", default="smollm2", help="a target with a shipped drafter (default smollm2)")
    parser.add_argument("--batch", type=bench_line.ints, default=(1, 16), metavar="N,…", help="default 1,16")
    parser.add_argument("--per-set", type=int, default=22, metavar="N", help="prompts of each set (default 22)")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="tokens of an answer (default 96)")
    parser.add_argument("--k", type=int, default=3, metavar="N", help="--shape: drafts a cycle (default 3)")
    parser.add_argument("--acceptance", type=float, default=0.8, metavar="X", help="--shape: of a draft (default 0.8)")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="--shape: tokens of a row (default 512)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("end_to_end", args)
    line.print(**(_real(args) if args.shape is None else _simulated(args)))


def _row(
    num_rows: int, speeds: dict[str, float], speedup: Interval, accept_length: float, tokens_a_cycle: float
) -> dict[str, Any]:
    """One batch size's figures."""
    return {
        "batch": num_rows,
        "tok_s": {name: significant(speed) for name, speed in speeds.items()},
        "speedup": ratio_as_dict(speedup),
        "accept_length": significant(accept_length),
        "tokens_a_cycle": significant(tokens_a_cycle),
        "efficiency": significant(speedup.value / tokens_a_cycle),
    }


@dataclass(frozen=True, slots=True)
class Answered:
    """A group of prompts answered together."""

    seconds: float
    tokens: int
    stats: RequestStats


def _real(args: argparse.Namespace) -> dict[str, Any]:
    speculative = LLM(
        args.model, device=args.device, dtype=args.dtype, max_rows=max(args.batch), prefix_reuse=False, max_context=4096
    )
    llms = {PLAIN: LLM.from_parts(speculative.target, None, speculative.config), SPECULATIVE: speculative}
    prompts = [speculative.encode(prompt.messages) for name in SETS for prompt in load(name, args.per_set)]
    batches = [_real_batch(args, llms, prompts, num_rows) for num_rows in args.batch]
    return {"batches": batches, "prompts": len(prompts), "model": speculative.describe()}


def _real_batch(
    args: argparse.Namespace, llms: dict[str, LLM], prompts: Sequence[list[int]], num_rows: int
) -> dict[str, Any]:
    """Groups take every n-th prompt, so that each holds prompts of all sets."""
    num_groups = -(-len(prompts) // num_rows)
    groups = [list(prompts[first::num_groups]) for first in range(num_groups)]
    params = SamplingParams(max_tokens=args.max_tokens)
    samples: dict[str, list[Sample]] = {name: [] for name in llms}
    drafted: list[RequestStats] = []
    for number, group in enumerate(groups, start=1):
        bench_line.say(f"batch {num_rows}: group {number} of {num_groups}")
        if number == 1:  # warms up
            interleave(list(llms.values()), 1, partial(_answer, group, params))
        rounds = interleave(list(llms.values()), args.rounds, partial(_answer, group, params))
        for name, of in zip(llms, rounds, strict=True):
            samples[name].append(Sample(tokens=[a.tokens for a in of], seconds=[a.seconds for a in of]))
        drafted += [answered.stats for answered in rounds[list(llms).index(SPECULATIVE)]]
    speeds = {name: total_tok_s(of) for name, of in samples.items()}
    speedup = speed_ratio(samples[SPECULATIVE], samples[PLAIN])
    total = RequestStats.total(drafted)
    tokens_a_cycle = total.emitted / total.cycles if total.cycles else 1.0
    return _row(num_rows, speeds, speedup, total.accept_length, tokens_a_cycle)


def _answer(group: Sequence[list[int]], params: SamplingParams, llm: LLM) -> Answered:
    began = time.perf_counter()
    results = llm.generate(group, params)
    seconds = time.perf_counter() - began
    stats = RequestStats.total(result.stats for result in results)
    return Answered(seconds, sum(len(result.token_ids) for result in results), stats)


def _simulated(args: argparse.Namespace) -> dict[str, Any]:
    device, dtype = bench_line.place(args)
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab
    )
    num_windows = max(8, args.rounds)
    longest = args.context + 2 * (num_windows + 2) * (args.max_tokens + 3 * (args.k + 1))
    pair = noise_pair(target.model, drafter, num_rows=max(args.batch), max_context=longest)

    def make(k: int) -> Decoder:
        return Decoder(pair, k=k, num_rows=max(args.batch), max_context=longest)

    decoders = {PLAIN: make(0), SPECULATIVE: make(args.k)}
    batches = []
    for num_rows in args.batch:
        bench_line.say(f"batch {num_rows}")
        for decoder in decoders.values():
            decoder.simulate([args.acceptance])
            decoder.admit(num_rows, args.context, longest - args.context)
            decoder.run(args.max_tokens)
        rounds = interleave(list(decoders), num_windows, lambda name: decoders[name].run(args.max_tokens))
        speeds = {name: [w.tok_s for w in of] for name, of in zip(decoders, rounds, strict=True)}
        windows = rounds[list(decoders).index(SPECULATIVE)]
        length = sum(w.tokens for w in windows) / (num_rows * sum(w.steps for w in windows))
        speedup = paired_ratio(speeds[SPECULATIVE], speeds[PLAIN])
        medians = {name: median(of) for name, of in speeds.items()}
        batches.append(_row(num_rows, medians, speedup, length, length))  # every cycle drafts
    return {"batches": batches, "engine": decoders[SPECULATIVE].describe()}


if __name__ == "__main__":
    bench_line.run(main)
