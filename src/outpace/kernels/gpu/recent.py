"""What rows passed through last, kept in one launch.

Shapes: B rows of R, S tokens a row, N tokens kept a row, F tapped features.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["num_tokens"])
def _remember(
    row_ptr, start_ptr, real_ptr, token_ptr, feature_ptr, recent_token_ptr, recent_feature_ptr, num_tokens, F,
    HAS_REAL: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    b, s = place // num_tokens, place % num_tokens
    num_real = num_tokens.to(tl.int64)
    if HAS_REAL:
        num_real = tl.load(real_ptr + b)
    if (s < num_real) & (s >= num_real - N):
        kept = tl.load(row_ptr + b) * N + (tl.load(start_ptr + b) + s) % N
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        feature = tl.load(feature_ptr + place * F + at, mask=at < F, other=0.0)
        tl.store(recent_feature_ptr + kept * F + at, feature, mask=at < F)
        if tl.program_id(1) == 0:
            tl.store(recent_token_ptr + kept, tl.load(token_ptr + place))


def remember(
    tokens_RN: Tensor,
    features_RNF: Tensor,
    rows_B: Tensor,
    start_B: Tensor,
    num_tokens_B: Tensor | None,
    tokens_BS: Tensor,
    features_BSF: Tensor,
) -> None:
    """`outpace.kernels.recent.remember`; everything is contiguous."""
    _, N, F = features_RNF.shape
    B, S = tokens_BS.shape
    block = min(1024, triton.next_power_of_2(F))
    _remember[(B * S, triton.cdiv(F, block))](
        rows_B, start_B, start_B if num_tokens_B is None else num_tokens_B, tokens_BS, features_BSF, tokens_RN,
        features_RNF, S, F, HAS_REAL=num_tokens_B is not None, N=N, BLOCK=block, num_warps=4,
    )  # fmt: skip
