"""A mixture of experts for few tokens: each chosen expert's weights are read once.

Two launches behind `routing.group_pairs`: gate, up and SiLU of every chosen pair; down, times the score.
Programs go over the experts that somebody chose, so time follows their number. A pair's result does not depend on what
else was chosen. What comes out are summands, one for each of a token's experts, for the norm behind to add up.

Shapes: T tokens, H hidden, E experts, C experts a token, P = T·C pairs (pair p is token p // C), I intermediate size,
M rows of a tile.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outpace.kernels.gpu.activation import silu_times
from outpace.kernels.gpu.chain import launch_next, overlapped, wait
from outpace.kernels.gpu.linear import filled
from outpace.kernels.gpu.routing import Groups, group_pairs

MAX_TOKENS = 64
MAX_PAIRS = 1024
_OUTPUTS, _INPUTS, _STAGES = 64, 128, 3
"""Of a tile of one expert's weights."""


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_chosen(
    x_ptr,
    weight_ptr,
    score_ptr,
    expert_ptr,
    pair_ptr,
    out_ptr,
    num_outputs,
    num_inputs,
    num_tokens,
    C: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One expert's tile for its pairs: gate and up from tokens to pairs, or down from pairs to summands."""
    wait(PDL)
    group = tl.program_id(1)
    expert = tl.load(expert_ptr + group).to(tl.int64)
    if expert >= 0:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        pair_M = tl.load(pair_ptr + group * M + tl.arange(0, M)).to(tl.int64)
        live_M = pair_M >= 0
        row_M = pair_M // C if GATED else pair_M
        x_MK = x_ptr + row_M[:, None] * num_inputs + k[None, :]
        half = num_outputs.to(tl.int64) * num_inputs
        weight_NK = weight_ptr + expert * half * (2 if GATED else 1) + n[:, None].to(tl.int64) * num_inputs + k[None, :]
        sum_NM = tl.zeros((BLOCK_N, M), tl.float32)
        up_NM = tl.zeros((BLOCK_N, M), tl.float32)
        for at in tl.range(0, num_inputs, BLOCK_K, num_stages=STAGES):
            live_NK, live_MK = (n < num_outputs)[:, None], live_M[:, None]
            if not EVEN:
                inside_K = (at + k < num_inputs)[None, :]
                live_NK, live_MK = live_NK & inside_K, live_MK & inside_K
            x = tl.load(x_MK + at, mask=live_MK, other=0.0)
            weight = tl.load(weight_NK + at, mask=live_NK, other=0.0, eviction_policy="evict_first")
            sum_NM = tl.dot(weight, x.T, sum_NM)
            if GATED:
                weight = tl.load(weight_NK + half + at, mask=live_NK, other=0.0, eviction_policy="evict_first")
                up_NM = tl.dot(weight, x.T, up_NM)
        kind = x_ptr.dtype.element_ty
        if GATED:
            sum_NM = silu_times(sum_NM, up_NM, kind)
            out_M = pair_M
        else:
            sum_NM *= tl.load(score_ptr + pair_M, mask=live_M, other=0.0)[None, :]
            out_M = pair_M % C * num_tokens + pair_M // C
        place_NM = out_ptr + out_M[None, :] * num_outputs + n[:, None]
        tl.store(place_NM, sum_NM.to(out_ptr.dtype.element_ty), mask=(n < num_outputs)[:, None] & live_M[None, :])
    launch_next(PDL)


def fits(x: Tensor, num_chosen: int) -> bool:
    """Whether these kernels take the tokens [..., H]: few, in 16 bits."""
    num_tokens = x.numel() // x.shape[-1]
    return num_tokens <= MAX_TOKENS and num_tokens * num_chosen <= MAX_PAIRS and x.dtype.itemsize == 2


def groups_plain(experts_TC: Tensor, num_experts: int, *, ahead: bool = False) -> Groups:
    """`group_pairs`, as `mixture` wants them: an expert's pairs in one group."""
    return group_pairs(experts_TC, num_experts, filled(len(experts_TC)), ahead=ahead)


def mixture(x_TH: Tensor, groups: Groups, scores_TC: Tensor, gate_up: Tensor, down: Tensor, out_CTH: Tensor) -> None:
    """Writes summands: score · down(silu(gate(x)) · up(x)) for each of a token's experts.

    Args:
        x_TH: contiguous, 16 bits.
        groups: `groups_plain` of the tokens' experts.
        scores_TC: float32, contiguous.
        gate_up: [E, 2·I, H], gate's rows first; contiguous.
        down: [E, H, I]; contiguous.
        out_CTH: float32, contiguous; what lies behind the C of a token's experts is left as it is.
    """
    (T, H), C, I, device = x_TH.shape, scores_TC.shape[1], down.shape[2], x_TH.device  # noqa: E741
    num_groups, rows = groups.pair_GM.shape
    shared = {"C": C, "M": rows, "BLOCK_N": _OUTPUTS, "BLOCK_K": _INPUTS, "STAGES": _STAGES, "num_warps": 4}
    shared |= overlapped(device)
    hidden_PI = torch.empty((T * C, I), dtype=x_TH.dtype, device=device)
    _multiply_chosen[(triton.cdiv(I, _OUTPUTS), num_groups)](
        x_TH, gate_up, scores_TC, groups.expert_G, groups.pair_GM, hidden_PI, I, H, T,
        GATED=True, EVEN=H % _INPUTS == 0, **shared,
    )  # fmt: skip
    _multiply_chosen[(triton.cdiv(H, _OUTPUTS), num_groups)](
        hidden_PI, down, scores_TC, groups.expert_G, groups.pair_GM, out_CTH, H, I, T,
        GATED=False, EVEN=I % _INPUTS == 0, **shared,
    )  # fmt: skip
