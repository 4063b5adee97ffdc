"""Fused norms, activations and choices against their PyTorch forms; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.gpu.test_attention import DEVICE, DTYPES
from outpace.config import GREEDY_BELOW
from outpace.kernels.sample import gumbel

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.activation import silu_mul
from outpace.kernels.gpu.norm import add_rms_norm
from outpace.kernels.gpu.sample import choose


def tolerance(dtype: torch.dtype) -> float:
    return 1e-6 if dtype == torch.float32 else 1e-2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [48, 576])
def test_add_rms_norm(dtype: torch.dtype, width: int) -> None:
    x, delta = torch.randn(2, 3, 5, width, dtype=dtype, device=DEVICE).unbind(0)
    weight = torch.rand(width, dtype=dtype, device=DEVICE) + 0.5
    total, out = add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    expected = F.rms_norm((x + delta).double(), (width,), weight.double(), 1e-5)
    assert (out - expected).norm() / expected.norm() < tolerance(dtype)


def test_rms_norm_alone_over_a_part_of_a_row() -> None:
    wide = torch.randn(4, 3 * 64, device=DEVICE)
    weight = torch.rand(64, device=DEVICE)
    part = wide[:, 64:128]
    same, out = add_rms_norm(part, None, weight, 1e-6)
    assert same is part
    assert torch.allclose(out, F.rms_norm(part, (64,), weight, 1e-6), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(2, 3, 2 * 1100, dtype=dtype, device=DEVICE)
    gate, up = gate_up.double().chunk(2, -1)
    expected = F.silu(gate) * up
    assert (silu_mul(gate_up, dtype) - expected).norm() / expected.norm() < tolerance(dtype)
    parts = torch.stack((gate_up.float() / 2, gate_up.float() / 4, gate_up.float() / 4))
    assert (silu_mul(parts, dtype, parts=3) - expected).norm() / expected.norm() < tolerance(dtype)


@pytest.mark.parametrize("num_ids", [61, 5000])
@pytest.mark.parametrize("with_ids", [False, True])
def test_choices_are_the_references(num_ids: int, with_ids: bool) -> None:
    B, S = 3, 2
    logits = torch.randn(B, S, num_ids, device=DEVICE) * 3
    logits[0, 0, 7:20] = -torch.inf
    temperature = torch.tensor([0.7, 0.0, 1.9], device=DEVICE)
    seed = torch.tensor([0, 5, 2**63 - 1], device=DEVICE)
    positions = torch.tensor([[0, 1], [7, 8], [2**31, 2**31 + 1]], device=DEVICE)
    ids = torch.randperm(num_ids * 2, device=DEVICE)[:num_ids].sort().values if with_ids else None
    noise = gumbel(seed, positions, torch.arange(num_ids, device=DEVICE) if ids is None else ids)
    greedy = (temperature == 0)[:, None, None]
    scores = torch.where(greedy, logits, logits / temperature.clamp(min=1e-9)[:, None, None] + noise)
    found = choose(logits, temperature, seed, positions, ids, sampled=True, greedy_below=GREEDY_BELOW)
    names = torch.arange(num_ids, device=DEVICE) if ids is None else ids
    assert torch.equal(found, names[scores.argmax(-1)])
    before = choose(logits, temperature, seed, positions - 3, ids, sampled=True, greedy_below=GREEDY_BELOW, ahead=3)
    assert torch.equal(before, found)
    plain = choose(logits, temperature, seed, positions, ids, sampled=False, greedy_below=GREEDY_BELOW)
    assert torch.equal(plain, names[logits.argmax(-1)])


def test_the_first_of_equal_logits_is_taken() -> None:
    logits = torch.zeros(1, 1, 6000, device=DEVICE)
    where = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    nothing = torch.zeros(1, device=DEVICE)
    found = choose(logits, nothing, nothing.long(), where, None, sampled=False, greedy_below=GREEDY_BELOW)
    assert int(found) == 0
