"""What one sum over ranks adds to a layer, by kind and size, launched one by one and within a graph.

    gather      the library's (NCCL or gloo), added in rank order by the norm behind it
    all-reduce  the library's
    symmetric   ours over symmetric memory: every rank writes to all, added by the norm (`kernels.gpu.exchange`)
    with norm   the same with the norm in its kernel (`kernels.gpu.exchange_norm`)
    one-shot    PyTorch's over symmetric memory: every rank reads all parts
    two-shot    PyTorch's over symmetric memory: every rank sums a share and writes it to all

Each is timed as it stands in a layer, with the join of a product's summands before it and the norm behind it, and so is
the norm alone, which adds the summands itself; the difference is what the sum costs. All kinds take turns, round after
round. A kind that does not run here says why. Each is checked against the sum that it should give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from outpace.distributed.group import Group, Unsummed
from outpace.distributed.symmetric import agree, attempt
from outpace.distributed.timing import captured, time_us
from outpace.lab.intervals.interval import CONFIDENCE
from outpace.lab.intervals.signed_ranks import locate
from outpace.lab.timing.rounds import interleave
from outpace.models.exchange import PeerExchange
from outpace.models.layers import RMSNorm
from outpace.models.parallel import across, whole

CALLS = 64
"""In one graph or one run of launches: as many as 32 layers have."""
SUMMANDS = 2
"""Of a product, on a GPU."""
ALONE_KIND = "norm alone"

Step = Callable[[], tuple[Tensor, Tensor]]
"""A sum and the norm behind it: (the residual, its norm)."""
Sum = Callable[[Tensor], Tensor | Unsummed]
"""Of this rank's part, as across gives it."""


def time_sums(
    group: Group,
    exchange: PeerExchange | str,
    device: torch.device,
    num_tokens: int,
    hidden: int,
    dtype: torch.dtype,
    num_rounds: int,
) -> dict[str, Any]:
    """Every rank calls this; all see the same kinds.

    Args:
        group: the ranks.
        exchange: ours, or why there is none.
        device: this rank's.
        num_tokens, hidden, dtype: of what is summed.
        num_rounds: passes over all kinds; 6 at least give intervals of 95%.

    Returns:
        By kind the microseconds that one sum costs ("eager_us", on a GPU "graph_us"), and what the whole takes beside
        gathering ("…_over_gather"); the norm's own; which kind was fastest.
    """
    x = torch.zeros((1, num_tokens, hidden), dtype=dtype, device=device)
    part = torch.full_like(x, group.rank + 1.0)
    if device.type == "cuda":
        part = part.float().expand(SUMMANDS, *x.shape).div(SUMMANDS).contiguous()
    norm = RMSNorm(hidden, 1e-5, dtype=dtype, device=device)
    torch.nn.init.ones_(norm.weight)
    steps: dict[str, Step] = {ALONE_KIND: lambda: norm.add(x, part)}
    reasons: dict[str, str] = {}
    for name, make in _kinds(group, exchange, x).items():
        step, why = attempt(lambda make=make: _checked(make(), norm, x, part, group.size))  # type: ignore[misc]
        if why := agree(group, device, why):
            reasons[name] = why
        else:
            assert step is not None
            steps[name] = step
    modes: dict[str, dict[str, Callable[[], None]]] = {"eager": {name: _run(step) for name, step in steps.items()}}
    if device.type == "cuda":
        modes["graph"] = {name: captured(run) for name, run in modes["eager"].items()}
    kinds: dict[str, dict[str, Any]] = {name: {"why_none": why} for name, why in reasons.items()}
    found: dict[str, Any] = {"kinds": kinds, "fastest": {}, "norm_alone": {}}
    for mode, runs in modes.items():
        names = list(runs)
        for run in runs.values():
            time_us(run, group, device)
        rounds = interleave(names, num_rounds, lambda name, runs=runs: time_us(runs[name], group, device) / CALLS)  # type: ignore[misc]
        _report(mode, dict(zip(names, rounds, strict=True)), found)
    return found


def _report(mode: str, times: dict[str, list[float]], found: dict[str, Any]) -> None:
    bare = times.pop(ALONE_KIND)
    found["norm_alone"][f"{mode}_us"] = _interval(bare)
    for name, each in times.items():
        kind = found["kinds"].setdefault(name, {})
        kind[f"{mode}_us"] = _interval([whole - norm for whole, norm in zip(each, bare, strict=True)])
        ratios = [log(a / b) for a, b in zip(each, times["gather"], strict=True)]
        kind[f"{mode}_over_gather"] = {name: exp(value) for name, value in _interval(ratios, 6).items()}
    found["fastest"][mode] = min(times, key=lambda name: found["kinds"][name][f"{mode}_us"]["center"])


def _interval(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Of differences or log ratios within rounds, by their signed ranks: both of a pair ran under the same noise.

    -inf … inf is written as the extremes, where there are too few rounds.
    """
    at = locate(values, CONFIDENCE)
    low, high = max(at.low, min(values)), min(at.high, max(values))
    return {"center": round(at.center, digits), "low": round(low, digits), "high": round(high, digits)}


def _kinds(group: Group, exchange: PeerExchange | str, x: Tensor) -> dict[str, Callable[[], Sum]]:
    """Each makes itself ready, or raises."""
    by_library = replace(group, exchange=None)

    def gather() -> Sum:
        return lambda part: by_library.gather(whole(part, x))

    def all_reduce() -> Sum:
        return lambda part: group.all_reduce(whole(part, x) if part.dim() > x.dim() else part.clone())

    def ours(norms: bool) -> Sum:
        if isinstance(exchange, str):
            raise RuntimeError(exchange)
        if not exchange.fits(x.numel(), x.dtype):
            raise RuntimeError(f"a part of {x.numel()} elements is more than it takes")
        with_ours = replace(group, exchange=exchange)

        def call(part: Tensor) -> Tensor | Unsummed:
            exchange.norms = norms
            return across(with_ours, part, x)

        return call

    def by_torch(operation: str) -> Sum:
        name, buffer = group.handle.group_name, symmetric.empty(x.shape, dtype=x.dtype, device=x.device)
        symmetric.rendezvous(buffer, name)
        run = getattr(torch.ops.symm_mem, operation)

        def call(part: Tensor) -> Tensor:
            buffer.copy_(whole(part, x))
            total: Tensor = run(buffer, "sum", name)
            return total

        return call

    kinds: dict[str, Callable[[], Sum]] = {"gather": gather, "all-reduce": all_reduce}
    if x.is_cuda and group.size > 1:
        kinds["symmetric"] = lambda: ours(norms=False)
        kinds["with norm"] = lambda: ours(norms=True)
        if not isinstance(exchange, str):
            kinds["one-shot"] = lambda: by_torch("one_shot_all_reduce")
            kinds["two-shot"] = lambda: by_torch("two_shot_all_reduce_")
    return kinds


def _checked(call: Sum, norm: RMSNorm, x: Tensor, part: Tensor, size: int) -> Step:
    def step() -> tuple[Tensor, Tensor]:
        total = call(part)
        if isinstance(total, Tensor) and total.dim() > x.dim() and not x.is_cuda:
            total = total.sum(0)
        return norm.add(x, total)

    if not bool((step()[0].float() == size * (size + 1) / 2).all()):
        raise RuntimeError("it gave a wrong sum")
    return step


def _run(step: Step) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            step()

    return run
