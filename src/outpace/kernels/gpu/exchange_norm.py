"""A sum over ranks and the norm behind it in one kernel: a program a row, over memory that all ranks map.

As `exchange`, whose slots and flags it has once more for whole rows, behind the memory of that. A row's parts are added
in rank order and then to the residual, as the norm alone adds them (`norm.add_rms_norm`): the bits are the same.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu import exchange
from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.exchange import POLLS, WIDEST, flag_bytes, meet, peers
from outpace.kernels.gpu.join import joined

ROWS = 64
"""Most rows."""
COLUMNS = 8192
"""Most elements of a row."""


def num_bytes(size: int) -> int:
    """Of one rank's memory, for `size` ranks, behind that of `exchange`."""
    return flag_bytes(ROWS, size) + 2 * ROWS * size * COLUMNS * WIDEST


@triton.jit
def _exchange_norm(
    part_ptr,
    x_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    address_ptr,
    epoch_ptr,
    stop_ptr,
    num_columns,
    x_stride,
    part_stride,
    rank,
    eps,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAGS: tl.constexpr,
    DATA: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    POLLS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    real = column < num_columns
    weight = tl.load(weight_ptr + column, mask=real, other=0.0).to(tl.float32)
    there, flag_ptrs, own = peers(address_ptr, rank, FLAGS, SIZE, WIDTH)
    wait(PDL)
    epoch = tl.load(epoch_ptr + row) + 1
    place = row.to(tl.int64) * num_columns + column
    sent = joined(part_ptr, place, real, part_stride, PARTS).to(x_ptr.dtype.element_ty)
    slot = ((epoch & 1) * ROWS + row) * SIZE
    for peer in tl.static_range(SIZE):
        lines = (tl.load(address_ptr + peer) + DATA).to(x_ptr.dtype)
        tl.store(tl.multiple_of(lines + (slot + rank) * COLUMNS, 16) + column, sent, mask=real)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + column, mask=real, other=0.0)
    heard_ptrs = (own + FLAGS).to(tl.pointer_type(tl.int32)) + row * WIDTH + tl.arange(0, WIDTH)
    meet(flag_ptrs + row * WIDTH + rank, heard_ptrs, there, epoch, stop_ptr, WIDTH, POLLS)
    lines = tl.multiple_of((own + DATA).to(x_ptr.dtype) + slot * COLUMNS, 16)
    delta = tl.load(lines + column, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32)
    for peer in tl.static_range(1, SIZE):
        delta += tl.load(lines + peer * COLUMNS + column, mask=real, other=0.0, cache_modifier=".cg")
    x = (x.to(tl.float32) + delta).to(x.dtype)  # rounded as the stored sum is
    tl.store(sum_ptr + place, x, mask=real)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / num_columns + eps)
    tl.store(out_ptr + place, (wide * scale * weight).to(x.dtype), mask=real)
    tl.store(epoch_ptr + row, epoch)


def exchange_and_norm(
    x: Tensor,
    part: Tensor,
    weight: Tensor,
    eps: float,
    *,
    addresses: Tensor,
    epochs: Tensor,
    stop: Tensor,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """(x + the sum of all ranks' parts, its RMSNorm · weight) over the last dimension, as `norm.add_rms_norm`.

    Every rank calls this with parts of one shape, in the same order, in one stream.

    Args:
        x: [..., H] of two or four bytes an element, `ROWS` rows of `COLUMNS` at most; the last dimension is contiguous
            and the others are evenly spaced.
        part: this rank's, contiguous, of x's shape, or its summands [C, ..., H] in float32.
        weight: [H].
        eps: added to the mean square.
        addresses, stop, rank: as for `exchange`.
        epochs: int32 [ROWS] on the device, zeros at first; this rank's count of these calls.
    """
    size, columns = addresses.numel(), x.shape[-1]
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    num_rows = rows.shape[0]
    assert num_rows <= ROWS and columns <= COLUMNS
    total, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    block, before = triton.next_power_of_2(columns), exchange.num_bytes(size)
    _exchange_norm[(num_rows,)](
        part,
        rows,
        weight,
        total,
        out,
        addresses,
        epochs,
        stop,
        columns,
        rows.stride(0),
        num_rows * columns,
        rank,
        eps,
        PARTS=part.shape[0] if part.dim() > x.dim() else 1,
        SIZE=size,
        WIDTH=triton.next_power_of_2(size),
        FLAGS=before,
        DATA=before + flag_bytes(ROWS, size),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        POLLS=POLLS,
        BLOCK=block,
        num_warps=min(8, max(1, block // 512)),
        **overlapped(x.device),
    )
    return total, out
