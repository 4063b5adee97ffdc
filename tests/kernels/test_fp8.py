"""The layout of FP8 weights on a GPU: what goes in comes out, bit for bit as the checkpoint's own unpacking."""

from __future__ import annotations

import pytest
import torch

from outpace.kernels.fp8 import Fp8
from outpace.kernels.packed import Grouped
from outpace.models.hf.unpack import fp8_blocks

EVERY = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
"""All finite numbers."""


def blocked(outputs: int, inputs: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random weight and its scales as a checkpoint has them."""
    numbers = EVERY[torch.randint(0, len(EVERY), (outputs, inputs))].view(torch.float8_e4m3fn)
    return numbers, torch.rand(-(-outputs // rows), -(-inputs // columns)) + 0.05


def held(outputs: int, inputs: int, *, dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu") -> Fp8:
    """A random weight in blocks of 128 x 128, packed."""
    numbers, scale = blocked(outputs, inputs, 128, 128)
    room = Fp8.empty(outputs=outputs, inputs=inputs, dtype=dtype, device=device)
    of_rows = scale.repeat_interleave(128, 0)[:outputs] / inputs**0.5 / 256
    room.fill(Grouped(numbers.to(device), of_rows.to(device), None, 128))
    return room


@pytest.mark.parametrize(
    ("outputs", "inputs", "columns"), [(24, 256, 128), (7, 320, 256), (3, 40, 40), (130, 130, 128)]
)
def test_the_round_trip_is_exact(outputs: int, inputs: int, columns: int) -> None:
    numbers, scale = blocked(outputs, inputs, 1, columns)
    room = Fp8.empty(2, outputs=outputs, inputs=inputs, dtype=torch.bfloat16, device="cpu")
    room[1].fill(Grouped(numbers, scale, None, columns))
    expected = fp8_blocks(numbers, scale, 1, columns)
    assert torch.equal(room[1].unpacked(), expected)
    assert torch.equal(room.unpacked()[1], expected)


def test_rows_are_filled_apart_and_put_in_order() -> None:
    room = held(40, 200)
    whole = room.unpacked()
    assert torch.equal(room.rows(8, 16).unpacked(), whole[8:24])
    order = torch.randperm(40)
    room.reorder(order)
    assert torch.equal(room.unpacked(), whole[order])
    assert room.num_bytes == 40 * (256 + 2 * 4)


def test_what_has_no_room_is_refused() -> None:
    room = Fp8.empty(outputs=3, inputs=256, dtype=torch.bfloat16, device="cpu")
    numbers, scale = blocked(3, 256, 1, 64)
    with pytest.raises(ValueError, match="blocks are of 64 inputs"):
        room.fill(Grouped(numbers, scale, None, 64))
    numbers.view(torch.uint8)[1, 7] = 0xFF
    with pytest.raises(ValueError, match="NaN"):
        room.fill(Grouped(numbers, scale[:, :2], None, 128))
