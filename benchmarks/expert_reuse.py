"""The claim: LOSSY expert reuse changes few choices and saves so many experts of a verify.

    python benchmarks/expert_reuse.py                            a small random mixture, in a minute on a CPU
    python benchmarks/expert_reuse.py --model DIR_OR_HUB_ID      a real one

Drafted tokens behind random contexts are verified with exact routing and with each number of reused experts: how often
the most likely token stays the same, how far logits move (Kullback-Leibler divergence, in nats), and how many experts a
layer are read. A row's first token does not move here, since its context was computed exactly; in serving, accepted
drafts leave lossy keys and values behind.
A random model's routers are far more even than a trained one's, and its choices closer to ties: take its figures for a
lower bound of agreement, and a model's own for itself. Speed: `benchmarks/mixture.py --expert-reuse N` on a GPU.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import slots_of
from outpace.lab.shapes.dense import SHAPES
from outpace.lab.timing import bench_line
from outpace.lab.timing.decoding import noise_pair
from outpace.models.arch import MixtureConfig, TargetConfig
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.models.target import Target


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR_OR_HUB_ID", help="a mixture (default: a small random one)")
    parser.add_argument("--reuse", type=bench_line.ints, default=(0, 1, 2, 4, 6), metavar="N,…",
                        help="experts of a drafted token that are reused (default 0,1,2,4,6)")  # fmt: skip
    parser.add_argument("--k", type=int, default=3, metavar="N", help="drafted tokens (default 3)")
    parser.add_argument("--context", type=int, default=64, metavar="N", help="tokens before them (default 64)")
    parser.add_argument("--count", type=int, default=50, metavar="N", help="contexts (default 50)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default auto)")
    parser.add_argument("--dtype", default="float32", help="of the weights (default float32)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("expert_reuse", args)
    device, dtype = bench_line.place(args)
    torch.manual_seed(0)
    if args.model is None:
        target = random_mixture(dtype, device)
    else:
        target = load_target(locate(args.model), dtype=dtype, device=device).model
    target.pack()
    mixture = target.config.mixture
    assert mixture is not None, f"{args.model} is no mixture of experts"
    with torch.inference_mode():
        found = [_compare(target, args) for _ in range(args.count)]
    cells = [{name: round(mean(f[num][name] for f in found), 5) for name in found[0][num]} for num in args.reuse]
    rows = [{"reuse": num, **cell} for num, cell in zip(args.reuse, cells, strict=True)]
    line.print(experts=mixture.num_experts, chosen=mixture.num_chosen, layers=sum(mixture.layers), cells=rows)


def random_mixture(dtype: torch.dtype, device: torch.device) -> Target:
    """64 experts, 8 a token, in 4 layers."""
    layers = 4
    mixture = MixtureConfig(
        num_experts=64, num_chosen=8, intermediate_size=64, normalizes=True, layers=(True,) * layers
    )
    config: TargetConfig = replace(
        SHAPES["tiny"](), mixture=mixture, num_layers=layers, windows=(None,) * layers, hidden_size=128, num_heads=4,
        num_kv_heads=4, head_dim=32, vocab_size=1000, intermediate_size=128,
    )  # fmt: skip
    target = Target(config, dtype=dtype, device=device)
    for parameter in target.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return target


def _compare(target: Target, args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """One context: by number of reused experts, what came of its verify."""
    S, device = args.k + 1, target.embed.weight.device
    tokens = torch.randint(target.config.vocab_size, (1, args.context + S), device=device)
    pair = noise_pair(target, None, num_rows=1, max_context=args.context + S)

    def forward(first: int, last: int, reuse: int) -> Tensor:
        pages = -(-last // pair.cache.page_size)
        table_BP = 1 + torch.arange(pages, device=device)[None]
        positions_BS = torch.arange(first, last, device=device)[None]
        slots_BS = slots_of(positions_BS, table_BP, pair.cache.page_size)
        start_B = torch.tensor([first], device=device)
        attend = PagedAttend(pair.cache, table_BP, start_B, slots_BS, target.config.windows)
        hidden_BSH, _ = target(tokens[:, first:last], positions_BS, attend, expert_reuse=reuse)
        return target.logits(hidden_BSH)[0].double().log_softmax(-1)

    forward(0, args.context, 0)
    exact = forward(args.context, args.context + S, 0)
    found: dict[int, dict[str, Any]] = {}
    for num in args.reuse:
        lossy = forward(args.context, args.context + S, num)
        touched = target.experts_touched()
        assert touched is not None and target.config.mixture is not None
        drafted, plain = lossy[1:], exact[1:]
        found[num] = {
            "same_choice": float((drafted.argmax(-1) == plain.argmax(-1)).double().mean()),
            "first_token_moves": float((lossy[0] - exact[0]).abs().max()),
            "divergence": float((plain.exp() * (plain - drafted)).sum(-1).mean()),
            "experts_a_layer": float(touched) / sum(target.config.mixture.layers),
        }
    return found


if __name__ == "__main__":
    bench_line.run(main)
