"""The layout of INT4 weights on a GPU: what goes in comes out, bit for bit as the checkpoint's own unpacking."""

from __future__ import annotations

import pytest
import torch

from outpace.kernels.int4 import Int4
from outpace.kernels.packed import Grouped


def grouped(rows: int, inputs: int, group: int, *, zeros: bool, dtype: torch.dtype = torch.bfloat16) -> Grouped:
    """A random weight as a checkpoint has it."""
    num_groups = -(-inputs // group)
    return Grouped(
        numbers_NK=torch.randint(0, 16, (rows, inputs), dtype=torch.int32),
        scale_NG=(torch.rand(rows, num_groups) + 0.05).to(dtype),
        zero_NG=torch.randint(0, 17, (rows, num_groups), dtype=torch.int32) if zeros else None,
        group=group,
    )


def plain(weight: Grouped) -> torch.Tensor:
    """Its numbers by their definition."""
    K, dtype = weight.numbers_NK.shape[1], weight.scale_NG.dtype
    of_K = torch.arange(K) // weight.group
    zero = 8 if weight.zero_NG is None else weight.zero_NG[:, of_K]
    return (weight.numbers_NK - zero).to(dtype) * weight.scale_NG[:, of_K]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "group"), [(24, 256, 32), (7, 320, 64), (5, 512, 128), (3, 40, 40)])
def test_the_round_trip_is_exact(rows: int, inputs: int, group: int, zeros: bool, dtype: torch.dtype) -> None:
    weight = grouped(rows, inputs, group, zeros=zeros, dtype=dtype)
    if group % 32:
        group = 64
        weight = Grouped(weight.numbers_NK, weight.scale_NG, weight.zero_NG, group)
    held = Int4.empty(2, outputs=rows, inputs=inputs, has_zeros=zeros, dtype=dtype, device="cpu")
    held[1].fill(weight)
    assert torch.equal(held[1].unpacked(), plain(weight))


def test_a_word_holds_two_inputs_of_four_planes() -> None:
    """Of the first 128 inputs the first 16 words; numbers here are the plane, plus 8 for the second of two inputs."""
    inputs = torch.arange(512)
    numbers = (inputs // 32 % 8 + 8 * (inputs % 2)).int().expand(2, -1)
    held = Int4.empty(outputs=2, inputs=512, has_zeros=False, dtype=torch.bfloat16, device="cpu")
    held.fill(Grouped(numbers, torch.ones(2, 16, dtype=torch.bfloat16), None, 32))
    assert held.words.shape == (2, 2, 32)
    assert (held.words[..., :16] == 0xBA983210 - 2**32).all()
    assert (held.words[..., 16:] == 0xFEDC7654 - 2**32).all()


def test_rows_are_filled_apart() -> None:
    upper, lower = (grouped(rows, 64, 32, zeros=False) for rows in (3, 5))
    held = Int4.empty(outputs=8, inputs=64, has_zeros=False, dtype=torch.bfloat16, device="cpu")
    held.rows(0, 3).fill(upper)
    held.rows(3, 5).fill(lower)
    assert torch.equal(held.unpacked(), torch.cat((plain(upper), plain(lower))))
    assert held.num_bytes == 4 * (8 * 32 + 4 * 8)


def test_what_has_no_room_is_refused() -> None:
    held = Int4.empty(outputs=3, inputs=64, has_zeros=False, dtype=torch.bfloat16, device="cpu")
    with pytest.raises(ValueError, match="groups are of 16 inputs"):
        held.fill(grouped(3, 64, 16, zeros=False))
    with pytest.raises(ValueError, match="zero points"):
        held.fill(grouped(3, 64, 32, zeros=True))
