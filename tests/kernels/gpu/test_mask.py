"""Packed masks on logits against the PyTorch form; without a GPU the interpreter runs the kernel."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE
from outpace.kernels.mask import mask, num_words, unpack

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu import mask as gpu_mask


@pytest.mark.parametrize("num_ids", [1, 31, 32, 61, 4096, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spare", [0, 1])
def test_masks_as_the_reference(num_ids: int, dtype: torch.dtype, spare: int) -> None:
    logits = torch.randn(3, 2, num_ids).to(dtype)
    words = torch.randint(-(2**31), 2**31, (3, 2, num_words(num_ids) + spare), dtype=torch.int64).int()
    words[0, 0] = -1
    words[0, 1] = 0
    before = logits.clone()
    found = gpu_mask.mask(logits.to(DEVICE), words.to(DEVICE)).cpu()
    assert found.dtype == dtype
    assert torch.equal(found, mask(logits, words))
    assert torch.equal(logits, before)
    assert torch.equal(found[0, 0], logits[0, 0])
    assert torch.isinf(found[0, 1]).all()


def test_the_reference_reads_bits_from_the_lowest() -> None:
    words = torch.tensor([[[0b101, -(2**31)]]], dtype=torch.int32)
    assert unpack(words, 64)[0, 0].nonzero().flatten().tolist() == [0, 2, 63]
    assert mask(torch.zeros(1, 1, 40), words).isfinite()[0, 0].nonzero().flatten().tolist() == [0, 2]
