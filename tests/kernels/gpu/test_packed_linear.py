"""Products by INT4 weights against float64 on their unpacked weights; without a GPU the interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES
from kernels.test_int4 import grouped

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.packed_linear import fits_int4, multiply_int4
from outpace.kernels.int4 import Grouped, Int4

HALF = DTYPES[1]


def weights(outputs: int, inputs: int, group: int, *, zeros: bool) -> Int4:
    held = Int4.empty(outputs=outputs, inputs=inputs, has_zeros=zeros, dtype=HALF, device=DEVICE)
    weight = grouped(outputs, inputs, group, zeros=zeros, dtype=HALF)
    held.fill(Grouped(weight.numbers_NK, weight.scale_NG / inputs**0.5 / 4, weight.zero_NG, group))
    return held


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group", "zeros", "bias"),
    [(1, 64, 512, 32, False, False), (5, 72, 288, 32, True, True), (17, 40, 256, 128, True, False)],
)
def test_products(rows: int, outputs: int, inputs: int, group: int, zeros: bool, bias: bool, gated: bool) -> None:
    held = weights(outputs * (2 if gated else 1), inputs, group, zeros=zeros)
    x = torch.randn(rows, inputs, device=DEVICE).to(HALF)
    b = torch.randn(held.num_outputs, device=DEVICE).to(HALF) if bias else None
    expected = F.linear(x.double(), held.unpacked().double(), None if b is None else b.double())
    if gated:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    found = multiply_int4(x[None], held, b, gated=gated)
    assert found.shape == (1, rows, outputs) and found.dtype is HALF
    assert (found[0].double() - expected).norm() / expected.norm() < 5e-3


def test_summands_add_up_and_do_not_depend_on_other_rows() -> None:
    held = weights(128, 1280, 32, zeros=False)
    x = torch.randn(9, 1280, device=DEVICE).to(HALF)
    found = multiply_int4(x, held, None, splits=True)
    assert found.shape == (3, 9, 128) and found.dtype is torch.float32
    expected = F.linear(x.double(), held.unpacked().double())
    assert (found.sum(0) - expected).norm() / expected.norm() < 5e-3
    alone = multiply_int4(x[4:5], held, None, splits=True)
    if DEVICE.type == "cuda":
        assert torch.equal(alone, found[:, 4:5])
    assert torch.allclose(alone, found[:, 4:5], atol=1e-4)


def test_what_it_leaves_to_others() -> None:
    held = weights(32, 64, 32, zeros=False)
    assert fits_int4(torch.empty(64, 64, dtype=HALF), held)
    assert not fits_int4(torch.empty(65, 64, dtype=HALF), held)
    assert not fits_int4(torch.empty(4, 64), held)
