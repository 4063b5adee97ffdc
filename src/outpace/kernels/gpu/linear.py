"""Products of few rows: y = x Wᵀ, where reading W is all the work.

One program multiplies BLOCK_N rows of W by all rows of x, W's rows being the long side of the tensor core's tile, so
that 16 rows of x cost what one costs. It sums over the inputs in one order whatever the number of rows: a plain step
and a verify get the same bits. The next kernel is let in when the sums are done, not before: its programs would settle
on whatever multiprocessors are free, and a product behind it would then sit on few of them.

Few outputs would leave most of the GPU idle, so a product may be split over its inputs: the splits come as summands in
float32, for the kernel behind to add up as it reads them.

At 128 rows the tensor cores' work counts too, and threads that copy tiles are missing there: a second kernel leaves the
copies to the hardware (TMA).

Shapes: M rows, N outputs, K inputs, C splits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outpace.kernels.gpu.activation import silu_times
from outpace.kernels.gpu.chain import fetch, launch_next, overlapped, wait

FEW_ROWS = 64
MAX_ROWS = 128
"""These, a whole tile, are copied by the hardware. Between the two and beyond, cuBLAS is as fast or faster."""
_PROGRAMS = 132
"""One on each multiprocessor."""
_MAX_SPLITS = 4
_LINE = tl.constexpr(64)
"""Elements of a line of the L2 cache."""
_MANY_INPUTS = 4096
"""From here on so few outputs as a router's, or those of a shared expert's share, are split further."""
_SPLIT_GATES = 2048
"""Gate and up with fewer outputs together would keep few multiprocessors busy: they are split, and SiLU joins them."""


@triton.jit
def finish(
    sum_NM,
    up_NM,
    bias_ptr,
    out_ptr,
    n,
    m,
    split,
    num_rows,
    num_outputs,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """From sums to outputs: bias, gate, rounding, storing."""
    live_N = n < num_outputs
    if HAS_BIAS and split == 0:
        sum_NM += tl.load(bias_ptr + n, mask=live_N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up_NM += tl.load(bias_ptr + num_outputs + n, mask=live_N, other=0.0).to(tl.float32)[:, None]
    kind = out_ptr.dtype.element_ty
    if GATED:
        sum_NM = silu_times(sum_NM, up_NM, kind)
    place_NM = out_ptr + (split * num_rows + m[None, :]).to(tl.int64) * num_outputs + n[:, None]
    tl.store(place_NM, sum_NM.to(kind), mask=live_N[:, None] & (m < num_rows)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    inputs_per_split,
    x_stride,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    split = tl.program_id(1)
    begin = split * inputs_per_split
    end = tl.minimum(begin + inputs_per_split, num_inputs)
    live_N1 = (n < num_outputs)[:, None]
    live_M1 = (m < num_rows)[:, None]
    start_N1 = weight_ptr + n[:, None].to(tl.int64) * num_inputs
    half = num_outputs.to(tl.int64) * num_inputs
    if EVEN:  # the first tile, while the kernel before ends
        lines_NL = start_N1 + begin + tl.arange(0, BLOCK_K // _LINE)[None, :] * _LINE
        fetch(lines_NL, PDL)
        if GATED:
            fetch(lines_NL + half, PDL)
    wait(PDL)
    x_MK = x_ptr + m[:, None] * x_stride + k[None, :]
    weight_NK = start_N1 + k[None, :]
    sum_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        if EVEN:
            live_NK, live_MK = live_N1, live_M1
        else:
            inside_K = (at + k < end)[None, :]
            live_NK, live_MK = live_N1 & inside_K, live_M1 & inside_K
        x = tl.load(x_MK + at, mask=live_MK, other=0.0)
        weight = tl.load(weight_NK + at, mask=live_NK, other=0.0, eviction_policy="evict_first")
        sum_NM = tl.dot(weight, x.T, sum_NM)
        if GATED:
            weight = tl.load(weight_NK + half + at, mask=live_NK, other=0.0, eviction_policy="evict_first")
            up_NM = tl.dot(weight, x.T, up_NM)
    launch_next(PDL)
    finish(sum_NM, up_NM, bias_ptr, out_ptr, n, m, split, num_rows, num_outputs, GATED, HAS_BIAS)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_wide(
    x_desc,
    weight_desc,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    inputs_per_split,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `_multiply`; what lies past the end of x or W reads as 0."""
    first = tl.program_id(0) * BLOCK_N
    split = tl.program_id(1)
    begin = split * inputs_per_split
    end = tl.minimum(begin + inputs_per_split, num_inputs)
    wait(PDL)
    sum_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        x = x_desc.load([0, at])
        sum_NM = tl.dot(weight_desc.load([first, at]), x.T, sum_NM)
        if GATED:
            up_NM = tl.dot(weight_desc.load([num_outputs + first, at]), x.T, up_NM)
    launch_next(PDL)
    n, m = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    finish(sum_NM, up_NM, bias_ptr, out_ptr, n, m, split, num_rows, num_outputs, GATED, HAS_BIAS)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program takes at a time, how many tiles are on their way, and into how many splits inputs are cut."""

    outputs: int
    inputs: int
    stages: int
    warps: int
    splits: int = 1


def splits_gate(num_outputs: int, num_inputs: int) -> bool:
    """Whether gate and up, of so many outputs together, are better a product in summands than one with `gated`."""
    return num_outputs < _SPLIT_GATES and num_inputs >= _MANY_INPUTS


def tile_of(num_outputs: int, rows: int, gated: bool, splits: bool, num_inputs: int = 0) -> Tile:
    """The tile for a product, by what measured best on an H200 (docs/log.md).

    What depends on the rows changes no bit of the result.

    Args:
        num_outputs: rows of W, of the gate alone if there is one.
        rows: of x, filled up to a power of two.
        gated: each program reads two such tiles.
        splits: it may be split.
        num_inputs: columns of W.
    """
    few = rows <= FEW_ROWS
    if gated:
        return Tile(64, 128, 3 if rows <= 16 else 4, 4) if few else Tile(64, 64, 3, 4)
    if num_outputs >= 16384:
        return Tile(128, 128, 3 if rows <= 16 else 4, 4) if few else Tile(128, 64, 3, 8)
    num_splits, most = 1, 16 if num_inputs >= _MANY_INPUTS else _MAX_SPLITS
    while splits and num_splits < most and 2 * num_splits * triton.cdiv(num_outputs, 64) <= _PROGRAMS:
        num_splits *= 2
    if few:
        return Tile(64, 128, 6, 4, num_splits)
    return Tile(64, 128, 4, 4, num_splits) if num_splits > 1 else Tile(64, 64, 8, 4)


def filled(num_rows: int) -> int:
    """Rows of the tile that so many rows of x fill up."""
    return max(16, int(triton.next_power_of_2(num_rows)))


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether this module takes the product: in 16 bits, few rows, evenly spaced; or as many as fill a tile, aligned.

    Between, the hardware fills tiles up with zeros so slowly that cuBLAS is faster.
    """
    num_rows = x.numel() // x.shape[-1]
    if num_rows > MAX_ROWS or weight.dtype.itemsize != 2 or x.stride(-1) != 1 or x.dtype != weight.dtype:
        return False
    if num_rows <= FEW_ROWS:
        return True
    return num_rows == MAX_ROWS and not any(n % 8 for n in (x.shape[-1], x.stride(-2), x.data_ptr() // 2))


def multiply(
    x: Tensor,
    weight_NK: Tensor,
    bias_N: Tensor | None,
    *,
    gated: bool = False,
    splits: bool = False,
    wide: bool = False,
    out: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """x Wᵀ + b of up to `MAX_ROWS` rows, summed in float32; in x's dtype, or as summands in float32.

    Args:
        x: [..., K], 16 bits; the last dimension is contiguous and the others are evenly spaced.
        weight_NK: contiguous.
        bias_N: None is 0.
        gated: the first half of the outputs is a gate for the second: returns silu(gate) · up, N / 2 wide.
        splits: return summands [C, ..., N] if that is faster; whoever reads them adds them up.
        wide: return float32.
        out: write there instead, [..., N], contiguous, of any float type.
        tile: in place of `tile_of`'s.
    """
    K = x.shape[-1]
    rows_MK = x if x.dim() == 2 else x.flatten(0, -2)
    M, N = rows_MK.shape[0], weight_NK.shape[0] // (2 if gated else 1)
    block_m = filled(M)
    tile = tile or tile_of(N, block_m, gated, splits, K)
    shape, dtype = (*x.shape[:-1], N), torch.float32 if wide else x.dtype
    if tile.splits > 1:
        shape, dtype = (tile.splits, *shape), torch.float32
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    per_split = triton.cdiv(triton.cdiv(K, tile.splits), tile.inputs) * tile.inputs
    grid = (triton.cdiv(N, tile.outputs), tile.splits)
    bias = weight_NK if bias_N is None else bias_N
    shared = {"GATED": gated, "HAS_BIAS": bias_N is not None, "BLOCK_M": block_m, "BLOCK_N": tile.outputs}
    shared |= {"BLOCK_K": tile.inputs, "STAGES": tile.stages, "num_warps": tile.warps} | overlapped(x.device)
    if M > FEW_ROWS:
        tile_of_x = TensorDescriptor.from_tensor(rows_MK, [block_m, tile.inputs])
        tile_of_weight = TensorDescriptor.from_tensor(weight_NK, [tile.outputs, tile.inputs])
        _multiply_wide[grid](tile_of_x, tile_of_weight, bias, out, M, N, K, per_split, **shared)
        return out
    even = K % (tile.inputs * tile.splits) == 0 and N % tile.outputs == 0
    stride = rows_MK.stride(0)
    _multiply[grid](rows_MK, weight_NK, bias, out, M, N, K, per_split, stride, EVEN=even, **shared)
    return out
