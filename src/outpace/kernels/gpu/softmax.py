"""The softmax over positions that come in blocks."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def soften(score_MT, peak_M, total_M):
    """One more block: (its weights, how far what came before fades, peak and total from now on).

    Scores are in base 2, and -inf where a query sees nothing. A query that has seen nothing yet has peak -inf, total 0.
    """
    new_M = tl.maximum(peak_M, tl.max(score_MT, 1))
    base_M = tl.where(new_M == float("-inf"), 0.0, new_M)  # nothing seen yet: exp2(-inf - 0) is 0, not NaN
    weight_MT = tl.exp2(score_MT - base_M[:, None])
    fade_M = tl.exp2(peak_M - base_M)
    return weight_MT, fade_M, new_M, total_M * fade_M + tl.sum(weight_MT, 1)
