"""The claim: a product of few rows takes what reading its weights takes, and no longer than cuBLAS's.

    python benchmarks/products.py                                       llama-8b, 1 to 128 rows
    python benchmarks/products.py --products qkv --rows 1,128 --tile 64x128x3x4x2 --tile 128x64x3x8x4
    TRITON_INTERPRET=1 python benchmarks/products.py --shape tiny --device cpu --dtype bfloat16 --rows 1 --rounds 2

The products of one layer, gate and up with their SiLU, and the head. Each is timed as a graph of many in a row, over so
many weights that none is warm, and stands beside the larger of two limits: its weights at the copy rate, its operations
at the rate of large products, both measured in the same run. A product may come as summands that whoever is behind adds
up as it reads them; that is not timed here, so another tile (`--tile`) that wins here has yet to win in `step.py`.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from outpace import ConfigError
from outpace.kernels.gpu.activation import silu_mul
from outpace.kernels.gpu.linear import Tile, filled, fits, multiply, tile_of
from outpace.lab.limits.rates import Rates, measure_rates
from outpace.lab.shapes.dense import SHAPES
from outpace.lab.timing import bench_line
from outpace.lab.timing.replay import Timed
from outpace.lab.timing.rounds import interleave, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant
from outpace.models.arch import TargetConfig

COLD_BYTES = {"cuda": 1 << 30, "cpu": 1 << 16}
"""Read from one use of a weight to the next: far more than the caches of a GPU hold."""
OURS, CUBLAS = "ours", "cublas"

Run = Callable[[Tensor], Tensor]
"""The product with a weight."""


@dataclass(frozen=True, slots=True)
class Product:
    """y = x Wᵀ."""

    num_outputs: int
    """Rows of W."""
    num_inputs: int
    gated: bool = False
    splits: bool = True
    """Whether whoever reads y may be given summands of it."""


def products_of(config: TargetConfig) -> dict[str, Product]:
    """Of a dense model: one layer's, and the head."""
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    return {
        "qkv": Product(width + 2 * config.num_kv_heads * config.head_dim, hidden),
        "output": Product(hidden, width),
        "gate_up": Product(2 * config.intermediate_size, hidden, gated=True, splits=False),
        "down": Product(hidden, config.intermediate_size),
        "head": Product(config.vocab_size, hidden, splits=False),
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__)
    parser.add_argument("--rows", type=bench_line.ints, default=(1, 4, 8, 32, 128), metavar="N,…",
                        help="of x (default 1,4,8,32,128)")  # fmt: skip
    parser.add_argument("--products", type=lambda text: tuple(text.split(",")), default=(), metavar="NAME,…",
                        help="qkv, output, gate_up, down, head (default all)")  # fmt: skip
    parser.add_argument("--tile", action="append", default=[], metavar="NxKxSxWxC",
                        help="tried too: outputs, inputs, stages, warps, splits; may be given again")  # fmt: skip
    return parser.parse_args(argv)


def tile_from(text: str) -> Tile:
    """ "64x128x6x4x2" as outputs, inputs, stages, warps and splits."""
    parts = text.split("x")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--tile {text!r} is not like 64x128x6x4x2: outputs, inputs, stages, warps, splits")
    return Tile(*map(int, parts))


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("products", args)
    device, dtype = bench_line.place(args)
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ConfigError(f"the kernels need a GPU, and the device is {device}; TRITON_INTERPRET=1 tries them on a CPU")
    found = products_of(SHAPES[args.shape]())
    if unknown := set(args.products) - set(found):
        raise ConfigError(f"--products {sorted(unknown)[0]!r} is unknown; there are {', '.join(found)}")
    tiles = {text: tile_from(text) for text in args.tile}
    rates = measure_rates(device)
    bench_line.say(f"rates: {rates.as_dict()}")
    cells = []
    for name in args.products or found:
        with torch.inference_mode():
            weights = _weights(found[name], dtype, device)
        for num_rows in args.rows:
            bench_line.say(f"{name}, {num_rows} rows")
            cells.append({"product": name, **_cell(found[name], weights, num_rows, tiles, args.rounds, rates)})
        del weights
    line.print(rates=rates.as_dict(), cells=cells)


def _weights(product: Product, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    num_bytes = product.num_outputs * product.num_inputs * dtype.itemsize
    shape, count = (product.num_outputs, product.num_inputs), 2 + COLD_BYTES[device.type] // num_bytes
    return [torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02) for _ in range(count)]


def _cell(
    product: Product, weights: list[Tensor], num_rows: int, tiles: dict[str, Tile], num_rounds: int, rates: Rates
) -> dict[str, Any]:
    """One product: times in microseconds."""
    weight = weights[0]
    x = torch.randn(num_rows, product.num_inputs, dtype=weight.dtype, device=weight.device)
    outputs = product.num_outputs // (2 if product.gated else 1)
    chosen = None
    runs: dict[str, Run] = {CUBLAS: lambda weight: _by_cublas(product, x, weight)}
    if fits(x, weight):
        chosen = tile_of(outputs, filled(num_rows), product.gated, product.splits, product.num_inputs)
        runs |= {OURS: _by_kernel(product, x, chosen)}
        runs |= {
            name: _by_kernel(product, x, each) for name, each in tiles.items() if product.splits or each.splits == 1
        }
    timed, refused = {}, {}
    for name, run in runs.items():
        try:
            timed[name] = _timed(run, weights)
        except Exception as error:  # a tile that the GPU has no room for: said, and the others are measured
            if name not in tiles:
                raise
            refused[name] = str(error).splitlines()[0]
    names = list(timed)
    rounds = interleave(names, num_rounds, lambda name: timed[name].once() / len(weights))
    seconds = dict(zip(names, rounds, strict=True))
    num_bytes = weight.numel() * weight.element_size()
    limit_s = max(num_bytes / rates.copy_bytes_s, 2 * num_rows * weight.numel() / rates.matrix_flops_s)
    shown = {
        name: {
            "us": {at: significant(1e3 * ms) for at, ms in spread_ms(of).items()},
            "fraction_of_limit": significant(limit_s / median(of)),
            "over_cublas": ratio_as_dict(paired_ratio(of, seconds[CUBLAS])),
        }
        for name, of in seconds.items()
    }
    return {
        "rows": num_rows,
        "bytes": num_bytes,
        "limit_us": significant(1e6 * limit_s),
        "tile": None if chosen is None else asdict(chosen),
        "times": shown,
        "refused": refused,
    }


def _timed(run: Run, weights: list[Tensor]) -> Timed:
    device = weights[0].device
    return Timed(lambda: [run(each) for each in weights], device, graph=device.type == "cuda", between=lambda: None)


def _by_kernel(product: Product, x: Tensor, tile: Tile) -> Run:
    return lambda weight: multiply(x, weight, None, gated=product.gated, splits=product.splits, tile=tile)


def _by_cublas(product: Product, x: Tensor, weight: Tensor) -> Tensor:
    y = F.linear(x, weight)
    return silu_mul(y, y.dtype) if product.gated else y


if __name__ == "__main__":
    bench_line.run(main)
