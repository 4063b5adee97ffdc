"""The claim: a long prompt is read at most of what the device can multiply, a short one in little more time than its
weights take. Prints one JSON line.

    python benchmarks/prefill.py                            llama-8b: 64, 1,024, 8,192 tokens, ~1 minute on an H200
    python benchmarks/prefill.py --tokens 32768 --rounds 6
    python benchmarks/prefill.py --tokens 64,256 --behind 0,4096,32768     a chat's next turn
    python benchmarks/prefill.py --shape tiny --device cpu --tokens 64 --rounds 6

From a prompt's arrival to its first token, through the engine's loop, nothing else running; no prefix is known, or with
`--behind` one of that many tokens, in full pages, whose keys and values are noise. Products
and attention of the plain engine, over its time, are held against the matrix rate of this device, measured in the same
run; `with_drafter_over_plain` is what filling the drafter's cache adds.

What bounds a short prompt is not that rate: all weights are read once, whatever the number of tokens, and where a chunk
is no graph, the host launches every operation. `limit_ms` is the longer of reading the weights and the known keys and
values at this device's copy rate and multiplying at its matrix rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from outpace.lab.limits.rates import Rates, measure_rates
from outpace.lab.limits.reads import Reads, target_reads
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing import bench_line
from outpace.lab.timing.decoding import Decoder, noise_pair
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant

PLAIN, DRAFTING = "plain", "with a drafter"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    lengths = (64, 1024, 8192)
    parser.add_argument("--tokens", type=bench_line.ints, default=lengths, metavar="N,…", help="of the prompts")
    parser.add_argument("--behind", type=bench_line.ints, default=(0,), metavar="N,…", help="that are known")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("prefill", args)
    device, dtype = bench_line.place(args)
    rates = measure_rates(device)
    bench_line.say(f"rates: {rates.as_dict()}")
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab
    )
    longest = max(args.behind) + max(args.tokens) + 64
    pair = noise_pair(target.model, drafter, num_rows=1, max_context=longest)
    decoders = {name: Decoder(pair, k=k, num_rows=1, max_context=longest) for name, k in ((PLAIN, 0), (DRAFTING, 3))}
    reads = target_reads(target.config, dtype.itemsize)
    line.print(
        rates=rates.as_dict(),
        chunk=decoders[PLAIN].engine.config.prefill_chunk,
        prompts=[
            _prompt(decoders, tokens, behind // pair.cache.page_size * pair.cache.page_size, args.rounds, reads, rates)
            for behind in args.behind
            for tokens in args.tokens
        ],
    )


def _prompt(
    decoders: dict[str, Decoder], tokens: int, behind: int, num_rounds: int, reads: Reads, rates: Rates
) -> dict[str, Any]:
    """One length: times in milliseconds."""
    bench_line.say(f"{tokens} tokens behind {behind}")
    for decoder in decoders.values():
        decoder.first_token_s(tokens, behind)
    rounds = interleave(list(decoders), num_rounds, lambda name: decoders[name].first_token_s(tokens, behind))
    seconds = dict(zip(decoders, rounds, strict=True))
    flops = reads.prefill_flops(tokens, behind)
    flops_s = flops / median(seconds[PLAIN])
    num_bytes = reads.weights + behind * reads.kv_per_token
    limit_s = max(num_bytes / rates.copy_bytes_s, flops / rates.matrix_flops_s)
    return {
        "tokens": tokens,
        "behind": behind,
        "limit_ms": significant(1e3 * limit_s),
        "fraction_of_limit": significant(limit_s / median(seconds[PLAIN])),
        "first_token_ms": {name: spread_ms(of) for name, of in seconds.items()},
        "tok_s": significant(tokens / median(seconds[PLAIN])),
        "tflops": significant(flops_s / 1e12),
        "fraction_of_matrix_rate": significant(flops_s / rates.matrix_flops_s),
        "with_drafter_over_plain": ratio_as_dict(paired_ratio(seconds[DRAFTING], seconds[PLAIN])),
    }


if __name__ == "__main__":
    bench_line.run(main)
