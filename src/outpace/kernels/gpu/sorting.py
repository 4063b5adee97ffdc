"""The pairs of many tokens and their experts, sorted by expert on the device and cut into tiles of one expert each.

A counting sort in two launches, however many pairs there are: each block of pairs is counted by expert; then every
program adds up what other blocks counted, which tells where its pairs go and which tiles there are. Pairs of an expert
keep their order. No atomics and nothing for the host to read, so it may be part of a graph.

Shapes: T tokens, E experts, C experts a token, P = T·C pairs (pair p is token p // C), B blocks, G tiles of up to M
pairs.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

_BLOCK, _STEP = 512, 64
"""Pairs of a block, and those that are compared with all experts at a time."""
_TILES = 16
"""That a program describes."""


@triton.jit
def _count_pairs(
    chosen_ptr, count_ptr, num_pairs, num_experts, BLOCK: tl.constexpr, STEP: tl.constexpr, BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """How many pairs of a block chose each expert."""
    launch_next(PDL)
    wait(PDL)
    block = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    count_E = tl.zeros((BLOCK_E,), tl.int32)
    for at in range(0, BLOCK, STEP):
        p = block * BLOCK + at + tl.arange(0, STEP)
        expert_S = tl.load(chosen_ptr + p, mask=p < num_pairs, other=-1)
        count_E += tl.sum((expert_S[:, None] == e[None, :]).to(tl.int32), 0)
    tl.store(count_ptr + block * num_experts + e, count_E, mask=e < num_experts)


@triton.jit
def _place_pairs(
    chosen_ptr, count_ptr, pair_ptr, expert_ptr, begin_ptr, end_ptr, num_pairs, num_experts, num_blocks, num_tiles,
    M: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, TILES: tl.constexpr, BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Where the pairs of a block go, and some of the tiles."""
    launch_next(PDL)
    wait(PDL)
    program = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    total_E = tl.zeros((BLOCK_E,), tl.int32)
    before_E = tl.zeros((BLOCK_E,), tl.int32)
    for at in range(0, num_blocks, 8):
        b = at + tl.arange(0, 8)
        live_BE = (b < num_blocks)[:, None] & (e < num_experts)[None, :]
        count_BE = tl.load(count_ptr + b[:, None] * num_experts + e[None, :], mask=live_BE, other=0)
        total_E += tl.sum(count_BE, 0)
        before_E += tl.sum(tl.where((b < program)[:, None], count_BE, 0), 0)
    begin_E = tl.cumsum(total_E, 0) - total_E

    next_E = begin_E + before_E
    s = tl.arange(0, STEP)
    first = program * BLOCK
    for at in range(first, tl.minimum(first + BLOCK, num_pairs), STEP):
        expert_S = tl.load(chosen_ptr + at + s, mask=at + s < num_pairs, other=-1)
        is_SE = expert_S[:, None] == e[None, :]
        place_S = tl.sum(tl.where(is_SE, next_E[None, :], 0), 1)
        place_S += tl.sum(((expert_S[:, None] == expert_S[None, :]) & (s[None, :] < s[:, None])).to(tl.int32), 1)
        tl.store(pair_ptr + place_S, at + s, mask=at + s < num_pairs)
        next_E += tl.sum(is_SE.to(tl.int32), 0)

    tiles_E = (total_E + M - 1) // M
    last_E = tl.cumsum(tiles_E, 0)
    g = program * TILES + tl.arange(0, TILES)
    nth_GE = g[:, None] - (last_E - tiles_E)[None, :]
    is_GE = (nth_GE >= 0) & (nth_GE < tiles_E[None, :])
    expert_G = tl.sum(tl.where(is_GE, e[None, :] + 1, 0), 1) - 1
    begin_G = tl.sum(tl.where(is_GE, begin_E[None, :] + nth_GE * M, 0), 1)
    end_G = tl.sum(tl.where(is_GE, (begin_E + total_E)[None, :], 0), 1)
    tl.store(expert_ptr + g, expert_G, mask=g < num_tiles)
    tl.store(begin_ptr + g, begin_G, mask=g < num_tiles)
    tl.store(end_ptr + g, tl.minimum(end_G, begin_G + M), mask=g < num_tiles)


@dataclass(frozen=True, slots=True)
class Tiles:
    """There are G of them: as many as there can be, which the host knows without reading. All int32."""

    pair_P: Tensor
    """Ascending by expert, and among those of one expert."""
    expert_G: Tensor
    """Ascending; -1 behind the last."""
    begin_G: Tensor
    end_G: Tensor
    """Where in `pair_P` its pairs lie."""


def sort_pairs(experts_TC: Tensor, num_experts: int, rows: int) -> Tiles:
    """Tiles of up to `rows` pairs of one expert.

    Args:
        experts_TC: int32, contiguous.
        num_experts: there are.
        rows: a power of two.
    """
    num_pairs, device = experts_TC.numel(), experts_TC.device
    num_blocks, num_tiles = triton.cdiv(num_pairs, _BLOCK), min(num_pairs, num_experts + num_pairs // rows)
    count_BE = torch.empty((num_blocks, num_experts), dtype=torch.int32, device=device)
    tiles = Tiles(*(torch.empty(n, dtype=torch.int32, device=device) for n in (num_pairs, *(num_tiles,) * 3)))
    shared = {"BLOCK": _BLOCK, "STEP": _STEP, "BLOCK_E": triton.next_power_of_2(num_experts), "num_warps": 8}
    shared |= overlapped(device)
    _count_pairs[(num_blocks,)](experts_TC, count_BE, num_pairs, num_experts, **shared)
    _place_pairs[(max(num_blocks, triton.cdiv(num_tiles, _TILES)),)](
        experts_TC, count_BE, tiles.pair_P, tiles.expert_G, tiles.begin_G, tiles.end_G, num_pairs, num_experts,
        num_blocks, num_tiles, M=rows, TILES=_TILES, **shared,
    )  # fmt: skip
    return tiles
