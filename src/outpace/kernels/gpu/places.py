"""Where a forward's tokens stand and where their keys and values go, in one launch.

Shapes: B rows, S tokens a row, P pages a row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["num_tokens", "num_pages", "ahead"])
def _places(
    start_ptr,
    kept_ptr,
    table_ptr,
    position_ptr,
    slot_ptr,
    num_tokens,
    num_pages,
    ahead,
    HAS_KEPT: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = s < num_tokens
    position = tl.load(start_ptr + row) + ahead + s
    kept = live & (position >= 0) & (position < num_pages * PAGE)
    if HAS_KEPT:
        kept &= s < tl.load(kept_ptr + row)
    page = tl.load(table_ptr + row * num_pages + position // PAGE, mask=kept, other=0)
    tl.store(position_ptr + row * num_tokens + s, position, mask=live)
    tl.store(slot_ptr + row * num_tokens + s, tl.where(kept, page * PAGE + position % PAGE, 0), mask=live)


def places(
    start_B: Tensor, num_tokens: int, kept_B: Tensor | None, page_table_BP: Tensor, page_size: int, ahead: int
) -> tuple[Tensor, Tensor]:
    """`outpace.kernels.kv.places`; the page table is contiguous."""
    B, num_pages = page_table_BP.shape
    position_BS = torch.empty((B, num_tokens), dtype=torch.int64, device=start_B.device)
    slot_BS = torch.empty_like(position_BS)
    block = 1 if num_tokens == 1 else 16 if num_tokens <= 16 else 256  # each is a compilation
    _places[(B, triton.cdiv(num_tokens, block))](
        start_B,
        start_B if kept_B is None else kept_B,
        page_table_BP,
        position_BS,
        slot_BS,
        num_tokens,
        num_pages,
        ahead,
        HAS_KEPT=kept_B is not None,
        PAGE=page_size,
        BLOCK=block,
        num_warps=1,
    )
    return position_BS, slot_BS
