"""INT4 weights as a GPU reads them: the layout, and what it means, in PyTorch. `gpu/int4.py` unpacks it in registers.

A block is 256 inputs of W [N, K]. Word i of the 32 that a row has in it holds inputs i, 32 + i, … 224 + i, the first
in its lowest four bits. So four bits of all 32 words are a *plane*: 32 neighbouring inputs, which share one scale. A
row of a block is 128 bytes and its neighbours lie beside it, a thread loads 16 bytes at a time, and no number moves to
another thread when it is unpacked. Planes j and j + 4 come out of one shift and two logical operations, as the halves
of a word; their scales, and their zeros, are the halves of a word too.

    words  [..., K / 256, N, 32]  int32
    scales [..., K / 256, 4, N]   int32: two numbers of the model's 16-bit type, plane j's the lower half
    zeros  [..., K / 256, 4, N]   int32: the same of what is taken off; None is 8 everywhere

Inputs are filled up to whole blocks, with scales of 0. A weight is (number - zero) · scale, rounded once to the model's
type: where the checkpoint's scales are of that type too, bit for bit what a checkpoint unpacked at load has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 256
"""Inputs."""
PLANE = 32
_PLANES = 8
_HALF = 4
"""Planes that share words of scales."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A weight, or a part of one, as its checkpoint packs it: numbers without their scales."""

    numbers_NK: Tensor
    """0 … 15, int32."""
    scale_NG: Tensor
    zero_NG: Tensor | None
    """0 … 16; None is 8 everywhere."""
    group: int
    """Inputs that share a scale."""


@dataclass(frozen=True, slots=True)
class Int4:
    """Weights in the layout above; leading dimensions are several of them."""

    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    num_inputs: int
    dtype: torch.dtype
    """Of the model: bfloat16 or float16."""

    @classmethod
    def empty(
        cls, *lead: int, outputs: int, inputs: int, has_zeros: bool, dtype: torch.dtype, device: torch.device | str
    ) -> Self:
        """Room for weights [*lead, outputs, inputs]."""
        blocks = -(-inputs // BLOCK)
        place = {"dtype": torch.int32, "device": device}
        scales = torch.empty((*lead, blocks, _HALF, outputs), **place)  # type: ignore[call-overload]
        words = torch.empty((*lead, blocks, outputs, PLANE), **place)  # type: ignore[call-overload]
        return cls(words, scales, torch.empty_like(scales) if has_zeros else None, inputs, dtype)

    def __getitem__(self, index: int) -> Int4:
        """One of several weights; a view."""
        zeros = None if self.zeros is None else self.zeros[index]
        return Int4(self.words[index], self.scales[index], zeros, self.num_inputs, self.dtype)

    def rows(self, start: int, size: int) -> Int4:
        """A range of outputs; a view."""
        zeros = None if self.zeros is None else self.zeros.narrow(-1, start, size)
        words, scales = self.words.narrow(-2, start, size), self.scales.narrow(-1, start, size)
        return Int4(words, scales, zeros, self.num_inputs, self.dtype)

    @property
    def num_outputs(self) -> int:
        return self.words.shape[-2]

    @property
    def num_bytes(self) -> int:
        tensors = (self.words, self.scales, self.zeros)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def fill(self, weight: Grouped) -> None:
        """Takes one weight [N, K].

        Raises:
            ValueError: its groups are no multiples of a plane, or are cut; or it has zeros and there is no room.
        """
        if why := why_not_packed(weight.group, self.num_inputs):
            raise ValueError(why)
        if weight.zero_NG is not None and self.zeros is None:
            raise ValueError("it has zero points where none were expected")
        numbers_NK, blocks = weight.numbers_NK, self.words.shape[-3]
        numbers_NK = F.pad(numbers_NK, (0, blocks * BLOCK - self.num_inputs), value=8)
        planes_NBPI = numbers_NK.view(-1, blocks, _PLANES, PLANE).to(torch.int32)
        words_NBI = planes_NBPI[:, :, 0].clone()
        for plane in range(1, _PLANES):
            words_NBI |= planes_NBPI[:, :, plane] << (4 * plane)
        self.words.copy_(words_NBI.movedim(1, 0))
        self.scales.copy_(self._pairs(weight.scale_NG.to(self.dtype), weight.group))
        if self.zeros is not None:
            zero_NG = weight.zero_NG if weight.zero_NG is not None else torch.full_like(weight.scale_NG, 8)
            self.zeros.copy_(self._pairs((zero_NG.float() + magic(self.dtype)).to(self.dtype), weight.group))

    def _pairs(self, of_NG: Tensor, group: int) -> Tensor:
        """[N, groups] in 16 bits → int32 [blocks, 4, N]."""
        of_planes = of_NG.repeat_interleave(group // PLANE, 1)[:, : -(-self.num_inputs // PLANE)]
        blocks = self.words.shape[-3]
        padded = F.pad(of_planes, (0, blocks * _PLANES - of_planes.shape[1])).view(-1, blocks, 2, _HALF)
        bits = padded.contiguous().view(torch.int16).to(torch.int32)
        return ((bits[:, :, 0] & 0xFFFF) | (bits[:, :, 1] << 16)).permute(1, 2, 0)

    def unpacked(self) -> Tensor:
        """The weights [..., N, K] in the model's type."""
        shifts = torch.arange(0, 4 * _PLANES, 4, dtype=torch.int32, device=self.words.device)
        numbers = ((self.words[..., None, :] >> shifts[:, None]) & 0xF).to(self.dtype)  # [..., B, N, 8, 32]
        if self.zeros is None:
            numbers -= 8
        else:
            numbers -= (self._halves(self.zeros) - magic(self.dtype))[..., None]
        whole = (numbers * self._halves(self.scales)[..., None]).flatten(-2).movedim(-3, -2)  # [..., N, B, 256]
        return whole.flatten(-2)[..., : self.num_inputs].contiguous()

    def _halves(self, pairs: Tensor) -> Tensor:
        """int32 [..., B, 4, N] → [..., B, N, 8] in the model's type."""
        both = torch.cat((pairs & 0xFFFF, (pairs >> 16) & 0xFFFF), -2).movedim(-2, -1)
        return torch.where(both >= 1 << 15, both - (1 << 16), both).to(torch.int16).view(self.dtype)


def magic(dtype: torch.dtype) -> float:
    """What a number becomes part of when its four bits are set in the mantissa."""
    return 128.0 if dtype == torch.bfloat16 else 1024.0


def why_not_packed(group: int, num_inputs: int) -> str | None:
    """Why groups of so many inputs do not fit the layout; None if they do."""
    if group % PLANE and group < num_inputs:
        return f"its groups are of {group} inputs; the kernels take multiples of {PLANE}"
    return None
