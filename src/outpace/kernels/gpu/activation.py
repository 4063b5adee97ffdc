"""SiLU of the gate times the up half, in one pass over their product's output."""

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
def silu_times(gate, up, kind: tl.constexpr):
    """silu(gate) · up in float32, rounded on the way as separate operations in `kind` would."""
    gate = gate.to(kind).to(tl.float32)
    gate = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    return gate * up.to(kind).to(tl.float32)


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, width, num_elements, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    launch_next(PDL)  # not before: who comes next may read ahead of its own wait
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < width
    kind: tl.constexpr = out_ptr.dtype.element_ty
    place = gate_up_ptr + row * 2 * width + column
    gate = tl.load(place, mask=real, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=real, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, PARTS):
        place += num_elements.to(tl.int64)
        gate += tl.load(place, mask=real, other=0.0)
        up += tl.load(place + width, mask=real, other=0.0)
    tl.store(out_ptr + row * width + column, silu_times(gate, up, kind).to(kind), mask=real)


def silu_mul(gate_up: Tensor, dtype: torch.dtype, *, parts: int = 1) -> Tensor:
    """silu(gate) · up of a contiguous [..., 2·I] whose first half is the gate; returns [..., I] in that dtype.

    With `parts` it comes as so many summands in float32, [parts, ..., 2·I].
    """
    shape, width = gate_up.shape[int(parts > 1) :], gate_up.shape[-1] // 2
    out = torch.empty((*shape[:-1], width), dtype=dtype, device=gate_up.device)
    num_rows = out.numel() // width
    grid = (num_rows, triton.cdiv(width, _BLOCK))
    _silu_mul[grid](
        gate_up, out, width, 2 * out.numel(), PARTS=parts, BLOCK=_BLOCK, num_warps=4, **overlapped(gate_up.device)
    )
    return out
