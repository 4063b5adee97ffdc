"""Applying packed masks to logits, one pass.

Shapes: B rows, S positions a row, V token ids, W words of 32 bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.chain import launch_next, overlapped, wait

_BLOCK = 4096


@triton.jit
def _mask(logits_ptr, allowed_ptr, out_ptr, num_ids, num_words, BLOCK: tl.constexpr, PDL: tl.constexpr):
    launch_next(PDL)
    wait(PDL)
    place = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = v < num_ids
    words = tl.load(allowed_ptr + place * num_words + v // 32, mask=real, other=0)
    allowed = ((words >> (v % 32)) & 1) != 0
    logits = tl.load(logits_ptr + place * num_ids + v, mask=real & allowed, other=float("-inf"))
    tl.store(out_ptr + place * num_ids + v, logits, mask=real)


def mask(logits_BSV: Tensor, allowed_BSW: Tensor) -> Tensor:
    """`outpace.kernels.mask.mask`; both contiguous."""
    B, S, V = logits_BSV.shape
    out_BSV = torch.empty_like(logits_BSV)
    _mask[(B * S, triton.cdiv(V, _BLOCK))](
        logits_BSV,
        allowed_BSW,
        out_BSV,
        V,
        allowed_BSW.shape[-1],
        BLOCK=_BLOCK,
        num_warps=8,
        **overlapped(logits_BSV.device),
    )
    return out_BSV
