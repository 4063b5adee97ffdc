"""The last tokens of rows against their PyTorch form; without a GPU the interpreter runs the kernel."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE
from outpace.kernels.recent import remember

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu import recent as gpu

R, N, F = 5, 12, 48


def rings(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((R, N), -1, device=device), torch.full((R, N, F), -1.0, device=device)


@pytest.mark.parametrize(("num_tokens", "real"), [(1, None), (5, None), (12, None), (30, (30, 7, 13)), (5, (0, 5, 1))])
def test_keeps_what_the_reference_keeps(num_tokens: int, real: tuple[int, ...] | None) -> None:
    rows, start = torch.tensor([3, 0, 2]), torch.tensor([0, 11, 100])
    tokens, features = torch.randint(1000, (3, num_tokens)), torch.randn(3, num_tokens, F)
    num = None if real is None else torch.tensor(real)
    expected, found = rings("cpu"), rings(DEVICE)
    remember(*expected, rows, start, num, tokens, features)
    given = [None if x is None else x.to(DEVICE) for x in (rows, start, num, tokens, features)]
    gpu.remember(*found, *given)
    for theirs, ours in zip(expected, found, strict=True):
        assert torch.equal(theirs[:-1], ours[:-1].cpu()), "the last row may hold anything"


def test_each_row_holds_its_newest_real_tokens_at_their_places() -> None:
    tokens_RN, features_RNF = rings("cpu")
    tokens, features = torch.arange(60).view(2, 30), torch.randn(2, 30, F)
    remember(
        tokens_RN, features_RNF, torch.tensor([1, 2]), torch.tensor([4, 40]), torch.tensor([30, 9]), tokens, features
    )
    for row, begin, first, num in ((0, 4 + 18, 18, 12), (1, 40, 0, 9)):
        for s in range(num):
            place = (begin + s) % N
            assert tokens_RN[row + 1, place] == tokens[row, first + s]
            assert torch.equal(features_RNF[row + 1, place], features[row, first + s])
    assert (tokens_RN[2] == -1).sum() == 3 and (tokens_RN[0] == -1).all()
