"""Every rank's part to every rank, over memory that all of them map (NVLink or PCIe peers): one kernel, one barrier.

Each program owns a block of the part and goes its own way: it writes its block into every rank's memory, raises a flag
there, waits for the flags of the others in its own memory, and copies what they wrote out of it. Two slots alternate.
A rank that writes slot e + 2 has seen the flag e + 1 of the one it writes to, which is raised by a later kernel than
the one that read slot e: so one barrier is enough. Which slot is due is counted on the device, by program, so calls may
be captured in any number of graphs and replayed in any order, as long as it is the same on all ranks, in one stream.

Memory of a rank, in bytes from its start: flags int32 [PROGRAMS, WIDTH], then blocks [2, PROGRAMS, size, BLOCK] of at
most four bytes an element. It begins as zeros.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.join import joined

BLOCK = 1024
"""Elements of a program: 16 bytes a thread and two-byte element."""
PROGRAMS = 512
"""Most programs; all of them must be resident, as they wait for each other's like."""
MAX_ELEMENTS = BLOCK * PROGRAMS
WIDEST = 4
"""Bytes of an element."""
POLLS = 1024
"""Looks at a flag between two looks at whether to give up, which go over the bus."""


def num_bytes(size: int) -> int:
    """Of one rank's memory, for `size` ranks."""
    return flag_bytes(PROGRAMS, size) + 2 * MAX_ELEMENTS * size * WIDEST


def flag_bytes(num_programs: int, size: int) -> int:
    """Of one rank's flags: int32 [num_programs, WIDTH]."""
    width: int = triton.next_power_of_2(size)
    return num_programs * width * 4


@triton.jit
def peers(address_ptr, rank, FLAGS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """(which of [WIDTH] are ranks, where each has its flags, where this rank has its memory)."""
    ranks = tl.arange(0, WIDTH)
    there = ranks < SIZE
    flag_ptrs = (tl.load(address_ptr + ranks, mask=there, other=0) + FLAGS).to(tl.pointer_type(tl.int32))
    return there, flag_ptrs, tl.load(address_ptr + rank)


@triton.jit
def meet(flag_ptrs, heard_ptrs, there, epoch, stop_ptr, WIDTH: tl.constexpr, POLLS: tl.constexpr):
    """Returns when this program's like on every rank has written what it had to, and all of it is seen here.

    `flag_ptrs` are where this rank raises its flags, `heard_ptrs` where it sees the others', both [WIDTH]; `there` says
    which of them are ranks.
    """
    tl.debug_barrier()  # all threads have written before one says so
    told = tl.full((WIDTH,), 0, tl.int32) + epoch
    tl.atomic_xchg(flag_ptrs, told, mask=there, sem="release", scope="sys")
    late = 1
    polls = 0
    while late != 0:
        heard = tl.atomic_add(heard_ptrs, 0, mask=there, sem="acquire", scope="sys")
        late = tl.max(((heard - epoch < 0) & there).to(tl.int32), 0)  # one of a later epoch is no less welcome
        polls += 1
        if polls % POLLS == 0:
            late = late * (1 - tl.load(stop_ptr, volatile=True))
    tl.debug_barrier()  # one thread has heard for all


@triton.jit
def _exchange(
    part_ptr,
    out_ptr,
    address_ptr,
    epoch_ptr,
    stop_ptr,
    num_elements,
    rank,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DATA: tl.constexpr,
    PROGRAMS: tl.constexpr,
    POLLS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_next(PDL)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    place = program * BLOCK + column
    real = place < num_elements
    there, flag_ptrs, own = peers(address_ptr, rank, 0, SIZE, WIDTH)
    wait(PDL)
    epoch = tl.load(epoch_ptr + program) + 1
    x = joined(part_ptr, place, real, num_elements, PARTS).to(out_ptr.dtype.element_ty)
    slot = ((epoch & 1) * PROGRAMS + program) * SIZE
    for peer in tl.static_range(SIZE):
        blocks = (tl.load(address_ptr + peer) + DATA).to(out_ptr.dtype)
        tl.store(tl.multiple_of(blocks + (slot + rank) * BLOCK, 16) + column, x)
    heard_ptrs = own.to(tl.pointer_type(tl.int32)) + program * WIDTH + tl.arange(0, WIDTH)
    meet(flag_ptrs + program * WIDTH + rank, heard_ptrs, there, epoch, stop_ptr, WIDTH, POLLS)
    blocks = (own + DATA).to(out_ptr.dtype)
    for peer in tl.static_range(SIZE):
        y = tl.load(tl.multiple_of(blocks + (slot + peer) * BLOCK, 16) + column, cache_modifier=".cg")
        tl.store(out_ptr + peer * num_elements + place, y, mask=real)
    tl.store(epoch_ptr + program, epoch)


def exchange(
    part: Tensor, dtype: torch.dtype, *, addresses: Tensor, epochs: Tensor, stop: Tensor, rank: int, joins: bool = False
) -> Tensor:
    """All ranks' parts in rank order: [size, ...] in `dtype`.

    Every rank calls this with parts of one shape, in the same order, in one stream.

    Args:
        part: contiguous, of `MAX_ELEMENTS` at most; with `joins` its float32 summands [C, ...], added here in order.
        dtype: of what is sent, two or four bytes an element.
        addresses: int64 [size], where this process maps each rank's memory.
        epochs: int32 [PROGRAMS] on the device, zeros at first; this rank's count.
        stop: int32 [1] in pinned memory; 1 ends the wait for ranks that will not come, and what comes out is noise.
        rank: this one.
    """
    size = addresses.numel()
    shape = part.shape[1:] if joins else part.shape
    out = torch.empty((size, *shape), dtype=dtype, device=part.device)
    num_elements = shape.numel()
    assert num_elements <= MAX_ELEMENTS and dtype.itemsize <= WIDEST
    _exchange[(triton.cdiv(num_elements, BLOCK),)](
        part,
        out,
        addresses,
        epochs,
        stop,
        num_elements,
        rank,
        PARTS=part.shape[0] if joins else 1,
        SIZE=size,
        WIDTH=triton.next_power_of_2(size),
        DATA=flag_bytes(PROGRAMS, size),
        PROGRAMS=PROGRAMS,
        POLLS=POLLS,
        BLOCK=BLOCK,
        num_warps=4,
        **overlapped(out.device),
    )
    return out
