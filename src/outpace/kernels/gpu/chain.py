"""Kernels in a row without the gaps between them (programmatic dependent launch, from Hopper on).

A kernel that was launched so starts while those before it still run; when its `wait` returns all of them have ended,
since each of them waited too: at least one program of it, for a launch ends with its last program. Before that it may
read only what none of them writes: weights; and, directly behind a kernel that lets the next one start only after its
own wait, as products, activations and experts do, everything older than that kernel. Others let the next one start at
once. A kernel that may read `ahead` is told by its caller, who knows what is launched before it. Nobody promises that
the L1 cache is empty before `wait`: what each layer writes at the same addresses is read past it (`.cg`).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@cache
def overlapped(device: torch.device) -> dict[str, Any]:
    """Launch options for a kernel with a `PDL` switch: overlapped where the device can, one by one elsewhere."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


@triton.jit
def launch_next(PDL: tl.constexpr):
    """Lets the next kernel's programs start wherever there is room, once every program of this one has come here."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Returns when every kernel before this one has ended and its writes are seen."""
    if PDL:
        gdc_wait()


@triton.jit
def fetch(pointers, PDL: tl.constexpr):
    """Brings the 128-byte lines at some addresses into the L2 cache; nothing waits for them."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )
