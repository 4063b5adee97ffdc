"""Products by packed weights against float64 on their unpacked weights; without a GPU the interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES
from kernels.test_fp8 import EVERY
from kernels.test_fp8 import held as fp8
from kernels.test_int4 import grouped

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.fp8 import Fp8
from outpace.kernels.gpu.packed import unpack
from outpace.kernels.gpu.packed_linear import fits_packed, multiply_packed
from outpace.kernels.int4 import Int4
from outpace.kernels.packed import Grouped, PackedWeight

HALF = DTYPES[1]


def weights(outputs: int, inputs: int, group: int | None, *, zeros: bool) -> PackedWeight:
    """INT4 in groups; without a group FP8."""
    if group is None:
        return fp8(outputs, inputs, dtype=HALF, device=DEVICE)
    held = Int4.empty(outputs=outputs, inputs=inputs, has_zeros=zeros, dtype=HALF, device=DEVICE)
    weight = grouped(outputs, inputs, group, zeros=zeros, dtype=HALF)
    held.fill(Grouped(weight.numbers_NK, weight.scale_NG / inputs**0.5 / 4, weight.zero_NG, group))
    return held


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group", "zeros", "bias"),
    [
        (1, 64, 512, 32, False, False),
        (5, 72, 288, 32, True, True),
        (17, 40, 256, 128, True, False),
        (1, 64, 512, None, False, False),
        (17, 72, 200, None, False, True),
    ],
)
def test_products(
    rows: int, outputs: int, inputs: int, group: int | None, zeros: bool, bias: bool, gated: bool
) -> None:
    held = weights(outputs * (2 if gated else 1), inputs, group, zeros=zeros)
    x = torch.randn(rows, inputs, device=DEVICE).to(HALF)
    b = torch.randn(held.num_outputs, device=DEVICE).to(HALF) if bias else None
    expected = F.linear(x.double(), held.unpacked().double(), None if b is None else b.double())
    if gated:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    found = multiply_packed(x[None], held, b, gated=gated)
    assert found.shape == (1, rows, outputs) and found.dtype is HALF
    assert (found[0].double() - expected).norm() / expected.norm() < 5e-3


@pytest.mark.parametrize(("group", "splits"), [(32, 3), (None, 4)])
def test_summands_add_up_and_do_not_depend_on_other_rows(group: int | None, splits: int) -> None:
    held = weights(128, 1280, group, zeros=False)
    x = torch.randn(9, 1280, device=DEVICE).to(HALF)
    found = multiply_packed(x, held, None, splits=True)
    assert found.shape == (splits, 9, 128) and found.dtype is torch.float32
    expected = F.linear(x.double(), held.unpacked().double())
    assert (found.sum(0) - expected).norm() / expected.norm() < 5e-3
    alone = multiply_packed(x[4:5], held, None, splits=True)
    if DEVICE.type == "cuda":
        assert torch.equal(alone, found[:, 4:5])
    assert torch.allclose(alone, found[:, 4:5], atol=1e-4)


def test_what_it_leaves_to_others() -> None:
    held = weights(32, 64, 32, zeros=False)
    assert fits_packed(torch.empty(64, 64, dtype=HALF), held)
    assert not fits_packed(torch.empty(65, 64, dtype=HALF), held)
    assert not fits_packed(torch.empty(4, 64), held)


def test_every_number_of_fp8_is_itself() -> None:
    """Rows of the identity give a weight's columns: exact, subnormals and both zeros included."""
    held = Fp8.empty(outputs=len(EVERY), inputs=128, dtype=HALF, device=DEVICE)
    numbers = EVERY[:, None].expand(-1, 128).contiguous().view(torch.float8_e4m3fn).to(DEVICE)
    held.fill(Grouped(numbers, torch.ones(len(EVERY), 1, device=DEVICE), None, 128))
    found = multiply_packed(torch.eye(128, device=DEVICE)[::9].to(HALF), held, None)
    assert torch.equal(found.float(), numbers[:, :1].float().t().expand(len(found), -1))


@pytest.mark.parametrize(("group", "zeros"), [(32, False), (64, True), (None, False)])
def test_unpacking_many_rows_is_the_reference_bit_for_bit(group: int | None, zeros: bool) -> None:
    held = weights(72, 320, group, zeros=zeros)
    several = type(held)(
        torch.stack((held.words, held.words.flip(-2))), torch.stack((held.scales, held.scales.flip(-1))),
        None if held.zeros is None else torch.stack((held.zeros, held.zeros.flip(-1))), held.num_inputs, HALF,
    )  # fmt: skip
    assert torch.equal(by_kernel(several), several._unpacked())
    assert torch.equal(by_kernel(held.rows(8, 40)), held._unpacked()[8:48])


def by_kernel(weight: PackedWeight) -> torch.Tensor:
    tensors = weight.words, weight.scales, weight.zeros
    return unpack(*tensors, num_inputs=weight.num_inputs, bits=weight.bits, dtype=weight.dtype)
