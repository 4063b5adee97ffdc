"""Products of few rows against float64; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.linear import FEW_ROWS, MAX_ROWS, fits, multiply

HALF = DTYPES[1]


@pytest.mark.parametrize("rows", [1, 3, 16, 17, FEW_ROWS, MAX_ROWS])
@pytest.mark.parametrize(("outputs", "inputs"), [(128, 512), (72, 200)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products(rows: int, outputs: int, inputs: int, gated: bool, with_bias: bool) -> None:
    x = torch.randn(rows, inputs, dtype=HALF, device=DEVICE)
    weight = torch.randn(2 * outputs if gated else outputs, inputs, dtype=HALF, device=DEVICE)
    bias = torch.randn(weight.shape[0], dtype=HALF, device=DEVICE) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    if gated:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    out = multiply(x, weight, bias, gated=gated)
    assert out.shape == expected.shape
    assert (out - expected).norm() / expected.norm() < 1e-2


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    x = torch.randn(MAX_ROWS, 512, dtype=HALF, device=DEVICE)
    weight = torch.randn(256, 512, dtype=HALF, device=DEVICE)
    whole = multiply(x, weight, None)
    for first, last in ((0, 1), (3, 4), (2, 18), (0, 32), (0, FEW_ROWS)):
        assert torch.equal(multiply(x[first:last], weight, None), whole[first:last])


def test_rows_of_a_wider_tensor() -> None:
    wide = torch.randn(4, 3, 256, dtype=HALF, device=DEVICE)
    weight = torch.randn(64, 128, dtype=HALF, device=DEVICE)
    part = wide[:, :, 128:]
    assert torch.equal(multiply(part, weight, None), multiply(part.contiguous(), weight, None))


def test_what_it_leaves_to_others() -> None:
    x = torch.zeros(MAX_ROWS + 1, 64, dtype=HALF, device=DEVICE)
    weight = torch.zeros(32, 64, dtype=HALF, device=DEVICE)
    assert not fits(x, weight)
    assert not fits(x[:4].float(), weight.float())
    assert fits(x[:4], weight)
    assert fits(x[:MAX_ROWS], weight)
    assert not fits(x[: MAX_ROWS - 1], weight)
    narrow = torch.zeros(MAX_ROWS, 36, dtype=HALF, device=DEVICE)
    assert not fits(narrow, weight[:, :36].contiguous()), "the hardware copies rows of whole 16 bytes"
    assert fits(narrow[:FEW_ROWS], weight[:, :36].contiguous())
