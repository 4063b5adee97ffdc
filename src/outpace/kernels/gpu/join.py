"""Summands of a product added up, where something else than a norm comes behind it: other ranks' parts."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

_BLOCK = 1024


@triton.jit
def joined(part_ptr, place, real, stride, PARTS: tl.constexpr):
    """A part, or the sum of its summands in order, which lie `stride` elements apart."""
    total = tl.load(part_ptr + place, mask=real, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(part_ptr + part * stride.to(tl.int64) + place, mask=real, other=0.0)
    return total


@triton.jit
def _join(part_ptr, out_ptr, num_elements, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    launch_next(PDL)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < num_elements
    wait(PDL)
    total = joined(part_ptr, place, real, num_elements, PARTS)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=real)


def join(summands: Tensor, dtype: torch.dtype) -> Tensor:
    """Their sum, in order.

    Args:
        summands: float32 [C, ...], contiguous.
        dtype: of the sum.
    """
    out = torch.empty(summands.shape[1:], dtype=dtype, device=summands.device)
    _join[(triton.cdiv(out.numel(), _BLOCK),)](
        summands, out, out.numel(), PARTS=summands.shape[0], BLOCK=_BLOCK, num_warps=4, **overlapped(out.device)
    )
    return out
