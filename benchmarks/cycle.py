"""The claim: a whole cycle costs little more than a plain step, and the host hides behind it. Prints one JSON line.

    python benchmarks/cycle.py                                  llama-8b at batch 1 and 8, ~2 minutes on an H200
    python benchmarks/cycle.py --batch 16 --k 3 --context 512,8192
    python benchmarks/cycle.py --batch 128 --count 5 --rest 0.5        at full clock
    python benchmarks/cycle.py --shape tiny --device cpu --rounds 6

`cycle_ms` is what serving takes: the engine's own loop, scheduler and control included, under simulated acceptance. Its
parts are `draft`, `verify` and `accept` (device events, one forward at a time), `rest` (what else a cycle takes on the
device, enqueued one ahead; negative where that is quicker) and `host_gap` (what the engine's loop adds). Plain steps
come from an engine without a drafter, and `cycle_over_plain`, taken within rounds, is the break-even accept length.
On a GPU a profiler's trace of `--count` more cycles says what share of the time no kernel ran, in all (`device`) and
from one cycle's last kernel to the next one's first (`between_cycles`).

Many rows bring a GPU to its power limit within a tenth of a second, and its clock falls; the copy rate was measured
before. `--rest` lets it cool before each stretch, so that few cycles are timed at the clock that the limit holds for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from outpace.engine import calibrate
from outpace.lab.limits.cycle import Limits, limits_of
from outpace.lab.limits.rates import measure_rates
from outpace.lab.profile.idle import trace_idle
from outpace.lab.profile.record import PHASES
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing import bench_line
from outpace.lab.timing.bench_line import Cell, cells_of
from outpace.lab.timing.decoding import Decoder, noise_pair
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant
from outpace.models.drafter import Drafter
from outpace.models.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One round of a cell: medians, in seconds."""

    served_s: float
    """A cycle in the engine's loop."""
    device_s: float
    """A cycle of the runner alone."""
    phases: dict[str, float]
    context: float
    """Tokens of a row, on average over the served cycles: each adds some."""

    def parts(self) -> dict[str, float]:
        """They add up to `served_s`."""
        rest = self.device_s - sum(self.phases.values())
        return {**self.phases, "rest": rest, "host_gap": self.served_s - self.device_s}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    bench_line.add_grid(parser)
    parser.add_argument("--count", type=int, default=20, metavar="N", help="cycles of a cell a round (default 20)")
    parser.add_argument("--acceptance", type=float, default=0.6, metavar="X", help="chance of a draft (default 0.6)")
    parser.add_argument(
        "--rest", type=float, default=0.0, metavar="S", help="seconds without work before what is timed (default 0)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("cycle", args)
    device, dtype = bench_line.place(args)
    rates = measure_rates(device)
    bench_line.say(f"rates: {rates.as_dict()}")
    target, drafter = random_models(
        args.shape, drafter=True, device=device, dtype=dtype, draft_vocab_size=args.draft_vocab
    )
    assert drafter is not None
    limits = limits_of(target.config, drafter.wiring, dtype, rates)
    decoders = _decoders(args, target.model, drafter)
    cells = cells_of(args)

    def measure(cell: Cell) -> Seen:
        return _seen(decoders[cell.num_rows, cell.k], cell, args.count, args.rest)

    for cell in cells:
        bench_line.say(f"warming up {cell}")
        measure(cell)
    rounds = interleave(cells, args.rounds, measure, lambda done: bench_line.say(f"round {done} of {args.rounds}"))
    measured = dict(zip(cells, rounds, strict=True))
    idle = {cell: _idle(decoders[cell.num_rows, cell.k], cell, args.count) for cell in cells}
    line.print(
        rates=rates.as_dict(),
        cells=[_report(c, measured[c], measured[c.plain], limits) | {"idle": idle[c]} for c in cells],
        drafter=drafter.wiring.describe(),
        graphs={f"batch {b}, k {k}": decoder.engine.runner.describe() for (b, k), decoder in decoders.items()},
    )


def _decoders(args: argparse.Namespace, target: Target, drafter: Drafter) -> dict[tuple[int, int], Decoder]:
    """By rows and k: an engine each, as a user would set it up."""
    longest = max(args.context) + _max_tokens(args.count, max(args.k))
    pair = noise_pair(target, drafter, num_rows=max(args.batch), max_context=longest)
    decoders = {(b, k): Decoder(pair, k=k, num_rows=b, max_context=longest) for b in args.batch for k in (0, *args.k)}
    for decoder in decoders.values():
        decoder.simulate([args.acceptance])
    return decoders


def _max_tokens(count: int, k: int) -> int:
    """Of a request: twice what all drafts of one measurement would be, if all were accepted."""
    return 2 * (count + 4) * (k + 1)


def _seen(decoder: Decoder, cell: Cell, count: int, rest_s: float) -> Seen:
    decoder.clear()
    runner = decoder.engine.runner
    time.sleep(rest_s)
    device = calibrate.time_cycles(runner, cell.num_rows, cell.k, cell.context, count)
    time.sleep(rest_s)
    phases = calibrate.time_phases(runner, cell.num_rows, cell.k, cell.context, count)
    decoder.admit(cell.num_rows, cell.context, _max_tokens(count, cell.k))
    before = decoder.mean_context
    time.sleep(rest_s)
    served = decoder.run(count * (cell.k + 1) // 2 + 1)
    return Seen(
        served_s=served.step_s,
        device_s=median(device),
        phases={name: median(phase.get(name, 0.0) for phase in phases) for name in PHASES},
        context=(before + decoder.mean_context) / 2,
    )


def _idle(decoder: Decoder, cell: Cell, count: int) -> dict[str, float] | None:
    """None where there is no device to trace."""
    if decoder.engine.runner.frames is None:
        return None
    decoder.admit(cell.num_rows, cell.context, _max_tokens(count, cell.k))
    return trace_idle(lambda: decoder.run(count * (cell.k + 1) // 2 + 1)).as_dict()


def _report(cell: Cell, seen: Sequence[Seen], plain: Sequence[Seen], limits: Limits) -> dict[str, Any]:
    """One cell: times and limits in milliseconds."""
    served, steps = [s.served_s for s in seen], [s.served_s for s in plain]
    read = round(median(s.context for s in seen))
    limit = limits.cycle(cell.num_rows, cell.k, read)
    parts = {name: [s.parts()[name] for s in seen] for name in seen[0].parts()}
    return {
        "batch": cell.num_rows,
        "context": cell.context,
        "k": cell.k,
        "cycle_ms": spread_ms(served),
        "device_ms": spread_ms([s.device_s for s in seen]),
        "parts_ms": {name: spread_ms(values) for name, values in parts.items()},
        "limit_ms": significant(1e3 * limit),
        "context_read": read,
        "fraction_of_limit": significant(limit / median(served)),
        "cycle_over_plain": ratio_as_dict(paired_ratio(served, steps)),
        "verify_over_plain": ratio_as_dict(
            paired_ratio([s.phases["verify"] for s in seen], [s.phases["verify"] for s in plain])
        ),
    }


if __name__ == "__main__":
    bench_line.run(main)
