"""The claim: on one tensor-parallel rank of Kimi-K2.5 a verify of few tokens takes what the experts it touches take.

    python benchmarks/mixture.py                                75 seconds and 80 GB on an H200
    python benchmarks/mixture.py --layers 6 --rounds 2          a part of the model, for trying out
    python benchmarks/mixture.py --shape deepseek-v3-tp8        a rank of DeepSeek-V3 in FP8, 95 GB
    python benchmarks/mixture.py --expert-reuse 4               with experts shared by drafted tokens, which is lossy
    python benchmarks/mixture.py --layers 6 --prefill 2048,8192 --pairs 64,128      with the experts of a prefill
    python benchmarks/mixture.py --shape tiny --layers 3 --device cpu --dtype bfloat16 --rounds 1 --count 1

Weights are random, in INT4 where the checkpoint's are; experts are drawn for every forward (`lab/shapes/drawn.py`), and
those that were touched are counted on the device. A forward reads far more than the caches hold, so none is warm. The
limit of a forward is its bytes over the copy rate of the same run. Parts are all layers' calls of that part, as a graph
of their own; grouping tokens by their experts is the routers'. What they leave of the whole forward is its rest:
embedding, gaps between launches, less what overlaps.
A prefill's experts are timed alone, for tiles of so many pairs, or of as many as they take by themselves (0), beside
two limits: their operations at the rate of large products, and their bytes at the copy rate, where each weight and each
token is moved once. What the path moves for pairs comes on top, and is shown too.
The extrapolation to all ranks adds two sums a layer at a stated cost: it is arithmetic, no measurement.
Prints one JSON line, which `outpace report` draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from outpace import ConfigError
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import slots_of
from outpace.kernels.reuse import Reuse
from outpace.lab.limits.rates import Rates, measure_rates
from outpace.lab.shapes.drawn import Drawn
from outpace.lab.shapes.mixture_parts import experts_of, experts_of_many, parts_of, time_by_kernel
from outpace.lab.shapes.ranks import RANKS
from outpace.lab.timing import bench_line
from outpace.lab.timing.decoding import noise_pair
from outpace.lab.timing.replay import Timed
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant

Run = Callable[[], object]
TINY = ("tiny", "tiny-fp8")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=RANKS, default="kimi-k2.5-tp8", help="default kimi-k2.5-tp8")
    parser.add_argument("--layers", type=int, default=61, metavar="N", help="the first is dense (default 61)")
    parser.add_argument("--k", type=bench_line.ints, default=(1, 2, 3, 7), metavar="N,…", help="default 1,2,3,7")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens (default 1024)")
    parser.add_argument("--experts-of", type=bench_line.ints, default=(1, 2, 3, 4, 8, 16, 32, 64), metavar="N,…",
                        help="tokens for which the experts are timed alone (default 1,2,3,4,8,16,32,64)")  # fmt: skip
    parser.add_argument("--prefill", type=bench_line.ints, default=(), metavar="N,…",
                        help="tokens of a prefill for which they are timed alone (default none)")  # fmt: skip
    parser.add_argument("--pairs", type=bench_line.ints, default=(0,), metavar="N,…",
                        help="of a prefill's tiles, powers of two; 0 leaves it to them (default 0)")  # fmt: skip
    parser.add_argument("--expert-reuse", type=int, default=0, metavar="N",
                        help="experts of a drafted token that are taken from open ones: lossy (default 0)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="passes over all variants (default 8)")
    parser.add_argument("--count", type=int, default=8, metavar="N", help="forwards of a variant a round (default 8)")
    parser.add_argument("--sum-us", type=bench_line.floats, default=(8.0, 15.0, 25.0), metavar="X,…",
                        help="cost of one sum over ranks in the extrapolation (default 8,15,25)")  # fmt: skip
    parser.add_argument("--draft-ms", type=float, default=0.3, metavar="X", help="one draft, there (default 0.3)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default auto)")
    parser.add_argument("--dtype", default="auto", help="16 bits: bfloat16, float16 or auto (default auto)")
    args = parser.parse_args(argv)
    for name, least in (("layers", 2), ("context", 1), ("rounds", 1), ("count", 1), ("expert_reuse", 0)):
        if (value := getattr(args, name)) < least:
            parser.error(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    for name in ("k", "experts_of", "prefill"):
        if (values := getattr(args, name)) and min(values) < 1:
            parser.error(f"--{name.replace('_', '-')} holds {min(values)}; it must hold numbers from 1 on")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("mixture", args)
    device, dtype = bench_line.place(args)
    if device.type != "cuda" and args.shape not in TINY:
        raise ConfigError(
            f"--shape {args.shape} needs a GPU, and the device is {device}; there, name {' or '.join(TINY)}"
        )
    rates = measure_rates(device)
    bench_line.say(f"rates: {rates.as_dict()}; making the model")
    make_config, form = RANKS[args.shape]
    drawn = Drawn.make(make_config(args.layers), form, max(*args.experts_of, max(args.k) + 1), dtype, device)
    forwards = {k: Forward(drawn, k + 1, args.context, args.expert_reuse) for k in (0, *args.k)}
    variants = [(k, how) for k in forwards for how in (("graph", "eager") if device.type == "cuda" else ("eager",))]
    timed = {}
    for k, how in variants:
        bench_line.say(f"preparing k = {k}, {how}")
        timed[k, how] = Timed(forwards[k].run, device, graph=how == "graph", between=forwards[k].draw)
    touched: dict[int, list[float]] = {k: [] for k in forwards}

    def measure(variant: tuple[int, str]) -> float:
        seconds = []
        for _ in range(args.count):
            seconds.append(timed[variant].once())
            touched[variant[0]].append(float(drawn.distinct(variant[0] + 1).sum()))
        return median(seconds)

    with torch.inference_mode():
        rounds = interleave(
            variants, args.rounds, measure, lambda done: bench_line.say(f"round {done} of {args.rounds}")
        )
        measured = dict(zip(variants, rounds, strict=True))
        cells = [_cell(k, forwards[k], measured, mean(touched[k]), rates.copy_bytes_s) for k in forwards]
        bench_line.say("experts alone")
        experts = [_experts(drawn, tokens, args, rates.copy_bytes_s) for tokens in args.experts_of]
        prefill = [_prefill(drawn, tokens, pairs, args, rates) for tokens in args.prefill for pairs in args.pairs]
        bench_line.say("parts")
        shown = [cell for cell in cells if cell["k"] in (0, 2 if 2 in args.k else args.k[0])]
        parts = {cell["k"]: _parts(drawn, forwards[cell["k"]], cell, args, rates.copy_bytes_s) for cell in shown}
        kernels = {k: time_by_kernel(forwards[k].run, device) for k in parts}
    line.print(
        rates=rates.as_dict(),
        layers={"all": args.layers, "with_experts": len(drawn.experts_LTC)},
        other_bytes=drawn.other_bytes,
        expert_bytes=drawn.expert_bytes,
        cells=cells,
        experts_alone=experts,
        prefill=prefill,
        parts=parts,
        kernels_eager=kernels,
        extrapolation=_extrapolate(cells, args),
    )


class Forward:
    """The target over so many tokens of one row, and the best token at each place."""

    def __init__(self, drawn: Drawn, num_tokens: int, context: int, expert_reuse: int) -> None:
        self.reuse = Reuse(expert_reuse, num_tokens)
        self.drawn, self.num_tokens = drawn, num_tokens
        config, device = drawn.model.config, drawn.experts_LTC.device
        self._pair = noise_pair(drawn.model, None, num_rows=1, max_context=context + num_tokens)
        cache = self._pair.cache
        pages = -(-(context + num_tokens) // cache.page_size)
        self.table_BP = 1 + torch.arange(pages, device=device)[None]
        self.start_B = torch.tensor([context], device=device)
        self.positions_BS = context + torch.arange(num_tokens, device=device)[None]
        self.slots_BS = slots_of(self.positions_BS, self.table_BP, cache.page_size)
        self.tokens_BS = torch.randint(config.vocab_size, (1, num_tokens), device=device)
        keys = cache.keys_LNHD
        self.kv_bytes = config.num_layers * (context + num_tokens) * keys.shape[-1] * keys.element_size()

    def attend(self) -> PagedAttend:
        windows = self.drawn.model.config.windows
        return PagedAttend(self._pair.cache, self.table_BP, self.start_B, self.slots_BS, windows)

    def draw(self) -> None:
        self.drawn.draw(self.reuse)

    def run(self) -> Tensor:
        hidden_BSH, _ = self.drawn.model(self.tokens_BS, self.positions_BS, self.attend(), expert_reuse=self.reuse.num)
        return self.drawn.model.logits(hidden_BSH).argmax(-1)

    def num_bytes(self, touched: float) -> float:
        """Of a forward that touches so many experts in all layers together."""
        return self.drawn.other_bytes + touched * self.drawn.expert_bytes + self.kv_bytes


def _cell(
    k: int, forward: Forward, measured: dict[tuple[int, str], list[float]], touched: float, copy_bytes_s: float
) -> dict[str, Any]:
    """A plain step or a verify: times in milliseconds."""
    num_bytes = forward.num_bytes(touched)
    limit_s = num_bytes / copy_bytes_s
    cell: dict[str, Any] = {
        "k": k,
        "experts_touched_a_layer": significant(touched / len(forward.drawn.experts_LTC)),
        "bytes": round(num_bytes),
        "limit_ms": significant(1e3 * limit_s),
    }
    for how in ("graph", "eager"):
        if (times := measured.get((k, how))) is None:
            cell[how] = None
            continue
        over_plain = ratio_as_dict(paired_ratio(times, measured[0, how]))
        cell[how] = {
            "ms": spread_ms(times),
            "fraction_of_limit": significant(limit_s / median(times)),
            "over_plain": over_plain,
        }
    return cell


def _experts(drawn: Drawn, num_tokens: int, args: argparse.Namespace, copy_bytes_s: float) -> dict[str, Any]:
    """The experts of all layers one after another: bytes of those touched over the time."""
    device, part = drawn.experts_LTC.device, experts_of(drawn, num_tokens)
    timed = Timed(part.run, device, graph=device.type == "cuda", between=_each_of(drawn.draw, part.prepare))
    seconds, counts = [], []
    for _ in range(args.rounds * args.count):
        seconds.append(timed.once())
        counts.append(float(drawn.distinct(num_tokens).sum()))
    layers = len(drawn.experts_LTC)
    num_bytes = mean(counts) * drawn.expert_bytes
    return {
        "tokens": num_tokens,
        "experts_touched": significant(mean(counts) / layers),
        "mb_a_layer": significant(num_bytes / layers / 1e6),
        "over_100_mb": num_bytes / layers > 1e8,
        "us_a_layer": significant(1e6 * median(seconds) / layers),
        "share_of_copy_rate": significant(num_bytes / median(seconds) / copy_bytes_s),
    }


def _each_of(*calls: Run) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


def _prefill(drawn: Drawn, num_tokens: int, pairs: int, args: argparse.Namespace, rates: Rates) -> dict[str, Any]:
    """The experts of all layers one after another over a prefill's tokens, sorting and adding up included."""
    bench_line.say(f"experts of {num_tokens} tokens")
    device, config, hidden = drawn.experts_LTC.device, drawn.mixtures[0].config, drawn.model.config.hidden_size
    part, touched = experts_of_many(drawn, num_tokens, pairs or None)
    timed = Timed(part.run, device, graph=device.type == "cuda", between=lambda: None)
    seconds = median(timed.once() for _ in range(args.rounds * args.count)) / len(drawn.experts_LTC)
    num_pairs, itemsize = num_tokens * config.num_chosen, drawn.model.embed.weight.element_size()
    flops = 2 * num_pairs * 3 * hidden * config.intermediate_size
    num_bytes = touched * drawn.expert_bytes + 2 * itemsize * num_tokens * hidden
    matrix_s, bytes_s = flops / rates.matrix_flops_s, num_bytes / rates.copy_bytes_s
    return {
        "tokens": num_tokens,
        "pairs_of_a_tile": pairs or "as it comes",
        "experts_touched": touched,
        "gflop_a_layer": significant(flops / 1e9),
        "mb_a_layer": significant(num_bytes / 1e6),
        "mb_of_pairs_a_layer": significant(itemsize * num_pairs * (3 * hidden + 2 * config.intermediate_size) / 1e6),
        "us_a_layer": significant(1e6 * seconds),
        "matrix_limit_us": significant(1e6 * matrix_s),
        "bytes_limit_us": significant(1e6 * bytes_s),
        "fraction_of_limit": significant(max(matrix_s, bytes_s) / seconds),
    }


def _parts(
    drawn: Drawn, forward: Forward, cell: dict[str, Any], args: argparse.Namespace, copy_bytes_s: float
) -> dict[str, Any]:
    """Each part over all layers beside the limit of its bytes; those that stack, and the rest, are the forward."""
    device = drawn.experts_LTC.device
    graph = device.type == "cuda"
    found: dict[str, Any] = {}
    left_ms = cell["graph" if graph else "eager"]["ms"]["median"]
    for name, part in parts_of(drawn, forward.attend, forward.num_tokens, forward.positions_BS).items():
        timed = Timed(part.run, device, graph=graph, between=_each_of(forward.draw, part.prepare))
        ms = 1e3 * median(timed.once() for _ in range(args.rounds * args.count))
        touched = cell["experts_touched_a_layer"] * len(drawn.experts_LTC) if name == "experts" else 0.0
        num_bytes = part.num_bytes + touched * drawn.expert_bytes + (forward.kv_bytes if name == "attention" else 0)
        found[name] = {
            "ms": significant(ms),
            "limit_ms": significant(1e3 * num_bytes / copy_bytes_s),
            "stacks": part.stacks,
        }
        left_ms -= ms if part.stacks else 0.0
    found["rest"] = {"ms": significant(left_ms), "limit_ms": 0.0, "stacks": True}
    return found


def _extrapolate(cells: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """All ranks together, by arithmetic: a forward here, and two sums a layer."""
    how = "graph" if cells[0]["graph"] is not None else "eager"
    rows = []
    for sum_us in args.sum_us:
        sums_ms = 2 * args.layers * sum_us / 1e3
        plain_ms = cells[0][how]["ms"]["median"] + sums_ms
        for cell in cells[1:]:
            verify_ms = cell[how]["ms"]["median"] + sums_ms
            cycle_ms = verify_ms + cell["k"] * args.draft_ms
            rows.append(
                {
                    "sum_us": sum_us,
                    "k": cell["k"],
                    "plain_ms": significant(plain_ms),
                    "plain_tok_s": significant(1e3 / plain_ms),
                    "verify_ms": significant(verify_ms),
                    "verify_over_plain": significant(verify_ms / plain_ms),
                    "cycle_ms": significant(cycle_ms),
                    "break_even_accept_length": significant(cycle_ms / plain_ms),
                }
            )
    note = "not measured: a rank's forward, plus two sums a layer and drafts at the stated costs"
    return {"note": note, "of": how, "draft_ms": args.draft_ms, "rows": rows}


if __name__ == "__main__":
    bench_line.run(main)
