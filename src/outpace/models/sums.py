"""Who brings the ranks' parts together, measured when they meet: symmetric memory up to some size, the library beyond.

Both gather in rank order, so that the choice moves time and no bit. It falls back to the library, and says why, where
there is no exchange (`exchange`). Every decision is the first rank's, or all ranks' together: none follows a clock of
one rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from outpace.config import Sums
from outpace.distributed.group import Group
from outpace.distributed.timing import captured, time_us
from outpace.models.exchange import EPS, PeerExchange, open_exchange

SIZES = ((1 << 12,), (1 << 14,), (1 << 16,), (1 << 18,), (1 << 19,))
"""Elements of a part, of two bytes: a token of 4,096, and as much as the exchange takes."""
ROWS = ((1, 4096), (4, 4096), (16, 4096))
"""Shapes with which the norm is measured."""
CALLS, ROUNDS = 32, 6
"""In one graph; and passes over all kinds, which take turns."""
CLEARLY = 0.97
"""Of the library's time: what is not clearly faster is left to it."""

Call = Callable[[Tensor], Tensor]


def with_sums(group: Group, device: torch.device, asked: Sums = "auto") -> Group:
    """The group with what gathers fastest. All ranks call this together, before any graph is captured."""
    if group.size == 1:
        return group
    found: PeerExchange | str = "sums = library asks for none"
    if asked == "auto":
        found = open_exchange(group, device)
    if isinstance(found, str):
        return replace(group, sums={"symmetric_up_to_bytes": 0, "why_not_symmetric": found, "measured": []})
    measured = measure(group, device, kinds(group, found), SIZES)
    normed = measure(group, device, norm_kinds(found, device), ROWS) if found.norms else []
    chosen = torch.tensor([limit_of(measured), norm_pays(normed)], dtype=torch.int64, device=device)
    found.max_bytes, norms = (int(number) for number in group.by_library(chosen)[0])  # the first rank's
    found.norms = bool(norms)
    said = {
        "symmetric_up_to_bytes": found.max_bytes,
        "why_not_symmetric": None if found.max_bytes else "the library is as fast at every size",
        "norm_in_kernel": found.norms and found.max_bytes > 0,
        "why_norm_apart": found.why_norm_apart or (None if found.norms else "it is as fast in a kernel of its own"),
        "measured": measured,
        "measured_with_norm": normed,
    }
    return replace(group, exchange=found if found.max_bytes else None, sums=said)


def kinds(group: Group, exchange: PeerExchange) -> dict[str, Call]:
    """Ways to bring parts together, by name. The first two give every rank all parts, the last one their sum."""
    return {
        "symmetric": lambda part: exchange.gather(part, part.dtype),
        "gather": group.by_library,
        "all_reduce": group.all_reduce,
    }


def norm_kinds(exchange: PeerExchange, device: torch.device) -> dict[str, Call]:
    """The exchange with the norm behind it, in one kernel and in two."""
    from outpace.kernels.gpu.norm import add_rms_norm

    weight = torch.ones(ROWS[0][1], dtype=torch.bfloat16, device=device)
    return {
        "one_kernel": lambda part: exchange.add_and_norm(part, part, weight, EPS)[0],
        "two_kernels": lambda part: add_rms_norm(part, exchange.gather(part, part.dtype), weight, EPS)[0],
    }


def limit_of(measured: Sequence[dict[str, Any]]) -> int:
    """Bytes of a part up to which the exchange was clearly faster than the library's gathering, at all sizes.

    The library's all-reduce is shown beside them and not chosen from: its bits depend on how many rows are summed.
    """
    limit = 0
    for row in measured:
        if row["symmetric_us"] > CLEARLY * row["gather_us"]:
            break
        limit = row["bytes"]
    return limit


def norm_pays(measured: Sequence[dict[str, Any]]) -> bool:
    """Whether the norm in the exchange's kernel was faster than behind it, over all sizes."""
    one, two = (sum(row[f"{kind}_us"] for row in measured) for kind in ("one_kernel", "two_kernels"))
    return bool(one < two)


def measure(
    group: Group, device: torch.device, calls: dict[str, Call], shapes: Sequence[tuple[int, ...]]
) -> list[dict[str, Any]]:
    """Microseconds of one call within a graph, by shape of the part; this rank's medians."""
    rows = []
    for shape in shapes:
        part = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        replays = {name: _replay(call, part) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in replays}
        for _ in range(ROUNDS):
            for name, replay in replays.items():
                times[name].append(time_us(replay, group, device) / CALLS)
        medians = {f"{name}_us": round(median(found), 2) for name, found in times.items()}
        rows.append({"bytes": part.numel() * part.element_size(), **medians})
    return rows


def _replay(call: Call, part: Tensor) -> Callable[[], None]:
    """Of a graph of `CALLS` calls, which has run once."""
    call(part)
    torch.cuda.synchronize(part.device)
    replay = captured(lambda: [call(part) for _ in range(CALLS)])
    replay()
    return replay
