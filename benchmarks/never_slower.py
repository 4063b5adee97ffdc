"""The claim: automatic k is never slower than an engine without a drafter, nor than the best fixed k. One JSON line.

    python benchmarks/never_slower.py --batch 1,4               on an H200: ~4 minutes; 16 takes ~5, 64 ~8
    python benchmarks/never_slower.py --batch 64 --context 8192 --acceptance 0,0.4,0.8
    python benchmarks/never_slower.py --shape tiny --device cpu --batch 1,4 --context 64 --tokens 32

For each batch, context and acceptance (steady; changing in mid-run; differing within the batch) the engines decode from
the same context in interleaved windows of equally many tokens, through the loop that serves requests. The best fixed k
is found in a window of each before. Control begins each cell as in an engine just started and settles for `--settle`
tokens, except to a change in mid-run: that lies inside every window, which is twice as long then. A cell passes if the
median of auto ÷ plain is at least 0.97, its lower bound at least 0.95, and the median of auto ÷ best fixed k (plain
included) at least 0.95. `of_totals` is the ratio of all tokens over all seconds, in which a rare slow window counts as
long as it was.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import median
from typing import Any

from outpace.lab.intervals.sign_test import MIN_ROUNDS
from outpace.lab.limits.kv_room import kv_room
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing import bench_line
from outpace.lab.timing.decoding import Decoder, Window, noise_pair
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant
from outpace.models.drafter import Drafter
from outpace.models.target import Target

MEDIAN_AT_LEAST, BOUND_AT_LEAST, OF_BEST_AT_LEAST = 0.97, 0.95, 0.95
AUTO, PLAIN = "auto", "plain"


@dataclass(frozen=True, slots=True)
class Pattern:
    """How drafts are accepted: stretches of `--tokens` tokens, each with the chances that its rows take in turn."""

    name: str
    stretches: tuple[tuple[float, ...], ...]


CHANGING = Pattern("changes from 0.9 to 0.1 and back", ((0.9,), (0.1,)))
MIXED = Pattern("0.9 and 0.1 in one batch", ((0.9, 0.1),))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    bench_line.add_grid(parser, batch="1,4,16,64", k="1,3,5,7", context="512,8192")
    parser.add_argument(
        "--acceptance",
        type=bench_line.floats,
        default=(0.0, 0.2, 0.4, 0.6, 0.8, 0.95),
        metavar="X,…",
        help="steady chances of a draft (default 0,0.2,0.4,0.6,0.8,0.95)",
    )
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="tokens of a row a window (default 48)")
    parser.add_argument("--settle", type=int, default=128, metavar="N", help="tokens before the windows (default 128)")
    parser.add_argument("--steady-only", action="store_true", help="leave out acceptance that changes or differs")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("never_slower", args)
    device, dtype = bench_line.place(args)
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab
    )
    assert drafter is not None
    room = kv_room(target.model, drafter)
    cells: list[dict[str, Any]] = []
    engines: dict[str, Any] = {}
    for num_rows in args.batch:
        decoders = _decoders(args, target.model, drafter, num_rows)
        for context in args.context:
            cells += _cells(args, decoders, num_rows, context)
        engines[f"batch {num_rows}"] = decoders[AUTO].describe()
        del decoders
        gc.collect()  # an engine's graphs and pages hang in a cycle of references
    failed = [cell for cell in cells if cell["passes"] is False]
    line.print(
        num_failed=len(failed), cells=cells, kv_pages=room, drafter=drafter.wiring.describe(), auto_engines=engines
    )
    if failed:
        raise SystemExit(1)


def _decoders(args: argparse.Namespace, target: Target, drafter: Drafter, num_rows: int) -> dict[str, Decoder]:
    """Automatic, plain, and one of each fixed k, over the same pages."""
    longest = max(args.context) + _max_tokens(args)
    pair = noise_pair(target, drafter, num_rows=num_rows, max_context=longest)

    def make(k: int, *, auto: bool = False) -> Decoder:
        return Decoder(pair, k=k, auto=auto, num_rows=num_rows, max_context=longest)

    decoders = {AUTO: make(max(args.k), auto=True), PLAIN: make(0)} | {f"k={k}": make(k) for k in args.k}
    for name, decoder in decoders.items():
        bench_line.say(f"batch {num_rows}: warming up {name}")
        decoder.warm_up(num_rows, min(args.context))
    return decoders


def _max_tokens(args: argparse.Namespace) -> int:
    """Of a request: rows that accept more than the others run ahead, so twice what all windows take on average."""
    a_window = 2 * args.tokens + 3 * (max(args.k) + 1)
    num_tokens: int = 2 * ((args.rounds + 2) * a_window + args.settle)
    return num_tokens


def _cells(
    args: argparse.Namespace, decoders: Mapping[str, Decoder], num_rows: int, context: int
) -> Iterator[dict[str, Any]]:
    first_token = _first_token(decoders, context)
    patterns = [Pattern(f"{chance:g}", ((chance,),)) for chance in args.acceptance]
    patterns += [] if args.steady_only else [CHANGING, MIXED]
    for pattern in patterns:
        if pattern is MIXED and num_rows == 1:
            continue
        bench_line.say(f"batch {num_rows}, context {context}, acceptance {pattern.name}")
        cell = {"batch": num_rows, "context": context, "acceptance": pattern.name}
        yield cell | _measure(args, decoders, pattern, num_rows, context) | {"first_token_ms": first_token}


def _first_token(decoders: Mapping[str, Decoder], context: int) -> dict[str, Any]:
    """Of one prompt as long as the context, with nothing else running; the drafter's part of prefill is in it."""
    names = (AUTO, PLAIN)
    for name in names:
        decoders[name].first_token_s(context)
    rounds = interleave(names, MIN_ROUNDS, lambda name: decoders[name].first_token_s(context))
    found: dict[str, Any] = {name: spread_ms(seconds) for name, seconds in zip(names, rounds, strict=True)}
    return found | {"auto_over_plain": ratio_as_dict(paired_ratio(*rounds))}


def _measure(
    args: argparse.Namespace, decoders: Mapping[str, Decoder], pattern: Pattern, num_rows: int, context: int
) -> dict[str, Any]:
    first: dict[str, Window] = {}
    for name, decoder in decoders.items():
        decoder.simulate(pattern.stretches[0])
        decoder.admit(num_rows, context, _max_tokens(args))
        first[name] = _window(decoder, pattern, args.tokens)
    tried = {name: window.tok_s for name, window in first.items() if name not in (AUTO, PLAIN)}
    fixed = max(tried, key=tried.__getitem__)
    names = (AUTO, PLAIN, fixed)
    for name in names:
        decoders[name].run(args.settle)
    rounds = interleave(names, args.rounds, lambda name: _window(decoders[name], pattern, args.tokens))
    control = decoders[AUTO].engine.control.describe()
    return {
        **_judge(dict(zip(names, rounds, strict=True)), fixed),
        "fixed_tok_s": {name: significant(speed) for name, speed in tried.items()},
        "pages_held": {name: decoders[name].num_pages_held for name in (AUTO, PLAIN)},
        "control": {name: control[name] for name in ("k", "why", "switches", "catch_up_steps")},
    }


def _window(decoder: Decoder, pattern: Pattern, tokens: int) -> Window:
    """The pattern once."""
    stretches = []
    for number, chances in enumerate(pattern.stretches):
        decoder.simulate(chances)
        stretches.append(decoder.run(tokens, continued=number > 0))
    return reduce(add, stretches)


def _judge(windows: Mapping[str, Sequence[Window]], fixed: str) -> dict[str, Any]:
    """Speeds and ratios of one cell, and whether it passes; None where too few windows give no interval."""
    speeds = {name: [window.tok_s for window in of] for name, of in windows.items()}
    best = max((PLAIN, fixed), key=lambda name: median(speeds[name]))
    over_plain, over_best = (paired_ratio(speeds[AUTO], speeds[name]) for name in (PLAIN, best))
    totals = {name: reduce(add, of).tok_s for name, of in windows.items()}
    shown_over_plain, shown_over_best = ratio_as_dict(over_plain), ratio_as_dict(over_best)
    return {
        "tok_s": {name: significant(median(of)) for name, of in speeds.items()},
        "auto_over_plain": {**shown_over_plain, "of_totals": significant(totals[AUTO] / totals[PLAIN])},
        "best_fixed": best,
        "auto_over_best_fixed": {**shown_over_best, "of_totals": significant(totals[AUTO] / totals[best])},
        "passes": _passes(shown_over_plain, shown_over_best),
    }


def _passes(over_plain: dict[str, Any], over_best: dict[str, Any]) -> bool | None:
    """By the figures as they are printed."""
    if over_plain["low"] is None:
        return None
    enough: bool = over_plain["median"] >= MEDIAN_AT_LEAST and over_plain["low"] >= BOUND_AT_LEAST
    return enough and over_best["median"] >= OF_BEST_AT_LEAST


if __name__ == "__main__":
    bench_line.run(main)
