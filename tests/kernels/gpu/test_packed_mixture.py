"""Packed experts against float64 on their unpacked weights; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES
from kernels.gpu.test_mixture import plain
from kernels.test_fp8 import held as fp8
from kernels.test_int4 import grouped

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.fp8 import Fp8
from outpace.kernels.gpu.packed_mixture import groups_packed, mixture_packed, splits_of
from outpace.kernels.gpu.routing import Routing, choose
from outpace.kernels.int4 import Int4
from outpace.kernels.packed import PackedWeight

HALF = DTYPES[1]


def experts(number: int, outputs: int, inputs: int, *, group: int | None = 32, zeros: bool = False) -> PackedWeight:
    """INT4 in groups; without a group FP8."""
    if group is None:
        several = Fp8.empty(number, outputs=outputs, inputs=inputs, dtype=HALF, device=DEVICE)
        for expert in range(number):
            one = fp8(outputs, inputs, dtype=HALF, device=DEVICE)
            several.words[expert], several.scales[expert] = one.words, one.scales
        return several
    held = Int4.empty(number, outputs=outputs, inputs=inputs, has_zeros=zeros, dtype=HALF, device=DEVICE)
    for expert in range(number):
        weight = grouped(outputs, inputs, group, zeros=zeros, dtype=HALF)
        held[expert].fill(type(weight)(weight.numbers_NK, weight.scale_NG / inputs**0.5 / 4, weight.zero_NG, group))
    return held


def packed(x: Tensor, chosen: Tensor, scores: Tensor, gate_up: PackedWeight, down: PackedWeight) -> Tensor:
    """[C, T, H], with a look at what lies behind."""
    out = torch.full((scores.shape[1] + 1, *x.shape), 7.0, device=DEVICE)
    mixture_packed(x, groups_packed(chosen, len(down.words)), scores, gate_up, down, out)
    assert (out[-1] == 7.0).all()
    return out[:-1]


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "hidden", "width", "group", "zeros"),
    [
        (1, 6, 2, 256, 64, 32, False),
        (3, 12, 4, 768, 96, 32, False),
        (3, 6, 2, 1000, 64, 32, False),
        (17, 3, 2, 288, 40, 32, True),
        (5, 4, 3, 512, 256, 128, True),
        (3, 12, 4, 768, 96, None, False),
        (17, 4, 2, 200, 256, None, False),
    ],
)
def test_chosen_experts_are_summed(
    num_tokens: int, num_experts: int, num_chosen: int, hidden: int, width: int, group: int | None, zeros: bool
) -> None:
    x = torch.randn(num_tokens, hidden, dtype=HALF, device=DEVICE)
    gate_up = experts(num_experts, 2 * width, hidden, group=group, zeros=zeros)
    down = experts(num_experts, hidden, width, group=32 if group and width % group else group, zeros=zeros)
    chosen, scores = choose(torch.randn(num_tokens, num_experts, device=DEVICE), Routing(num_chosen, True))
    out = packed(x, chosen, scores, gate_up, down)
    whole, half = gate_up.unpacked(), down.unpacked()
    for token in range(num_tokens):
        for place, expert in enumerate(chosen[token].tolist()):
            gate, up = F.linear(x[token].double(), whole[expert].double()).chunk(2)
            expected = F.linear(F.silu(gate) * up, half[expert].double()) * scores[token, place].double()
            assert (out[place, token] - expected).norm() / expected.norm() < 1e-2
    if DEVICE.type == "cuda":  # the interpreter cuts what a GPU rounds
        unpacked = plain(x, chosen, scores, whole, half)
        limit = 3e-3 if group else 6e-3  # INT4 weights are the unpacked ones; FP8's are not rounded to the model's type
        assert (out - unpacked).norm() / unpacked.norm() < limit


@pytest.mark.parametrize("group", [32, None])
def test_a_tokens_bits_do_not_depend_on_the_others(group: int | None) -> None:
    gate_up, down = experts(6, 2 * 64, 1024, group=group), experts(6, 1024, 64, group=group)
    assert splits_of(64, 4) == 4
    x = torch.randn(9, 1024, dtype=HALF, device=DEVICE)
    chosen, scores = choose(torch.randn(9, 6, device=DEVICE), Routing(3, True))
    whole = packed(x, chosen, scores, gate_up, down)
    alone = packed(x[3:4], chosen[3:4].contiguous(), scores[3:4].contiguous(), gate_up, down)
    if DEVICE.type == "cuda":
        assert torch.equal(alone, whole[:, 3:4])
    assert torch.allclose(alone, whole[:, 3:4], atol=1e-4)


@pytest.mark.parametrize("width", [16, 256, 768, 2048])
@pytest.mark.parametrize("num_blocks", [1, 3, 5, 28])
def test_splits_are_of_as_many_blocks(width: int, num_blocks: int) -> None:
    splits = splits_of(width, num_blocks)
    assert splits in (1, 2, 4) and num_blocks % splits == 0
    assert (splits == 4) == (num_blocks == 28 and width <= 256)
