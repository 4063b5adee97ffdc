"""INT4 weights as a GPU reads them, in PyTorch; `gpu/packed.py` unpacks them in registers.

A block is 256 inputs: eight planes of 32, each of which shares one scale. Of its 32 words the first 16 hold planes 0 to
3, the others 4 to 7. Word i of a half holds inputs 2i and 2i + 1 of its plane j, four bits each: the first from bit 4j
on, the second from bit 16 + 4j on. Scales of planes j and j + 4, and their zeros, are the halves of a word.

    words  [..., K / 256, N, 32]  int32
    scales [..., K / 256, 4, N]   int32: two numbers of the model's 16-bit type, plane j's the lower half
    zeros  [..., K / 256, 4, N]   int32: the same of what is taken off, whole numbers; None is 8 everywhere

A weight is (number - zero) · scale, rounded once to the model's type: where the checkpoint's scales are of that type
too, bit for bit what a checkpoint unpacked at load has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from outpace.kernels.packed import WORDS, Grouped, PackedWeight

BLOCK = 256
"""Inputs."""
PLANE = 32
_PLANES = 8
_HALF = 4
"""Planes that share words of scales."""


@dataclass(frozen=True, slots=True)
class Int4(PackedWeight):
    """Weights in the layout above."""

    bits = 4
    scale_bytes = 16
    name = "INT4"

    @classmethod
    def empty(
        cls, *lead: int, outputs: int, inputs: int, has_zeros: bool, dtype: torch.dtype, device: torch.device | str
    ) -> Self:
        """Room for weights [*lead, outputs, inputs]."""
        blocks = -(-inputs // BLOCK)
        scales = torch.empty((*lead, blocks, _HALF, outputs), dtype=torch.int32, device=device)
        words = torch.empty((*lead, blocks, outputs, WORDS), dtype=torch.int32, device=device)
        return cls(words, scales, torch.empty_like(scales) if has_zeros else None, inputs, dtype)

    @classmethod
    def why_not(cls, group: int, num_inputs: int) -> str | None:
        if group % PLANE and group < num_inputs:
            return f"its groups are of {group} inputs; the kernels take multiples of {PLANE}"
        return None

    def fill(self, weight: Grouped) -> None:
        if why := self.why_not(weight.group, self.num_inputs):
            raise ValueError(why)
        if weight.zero_NG is not None and self.zeros is None:
            raise ValueError("it has zero points where none were expected")
        numbers_NK, blocks = weight.numbers_NK, self.num_blocks
        numbers_NK = F.pad(numbers_NK, (0, blocks * BLOCK - self.num_inputs), value=8)
        parts = numbers_NK.view(-1, blocks, 2, _HALF, 16, 2).to(torch.int32)  # halves, planes, words, inputs of one
        words = torch.zeros_like(parts[:, :, :, 0, :, 0])
        for plane in range(_HALF):
            for place in range(2):
                words |= parts[:, :, :, plane, :, place] << (4 * plane + 16 * place)
        self.words.copy_(words.flatten(2).movedim(1, 0))
        self.scales.copy_(self._pairs(weight.scale_NG.to(self.dtype), weight.group))
        if self.zeros is not None:
            zero_NG = weight.zero_NG if weight.zero_NG is not None else torch.full_like(weight.scale_NG, 8)
            self.zeros.copy_(self._pairs(zero_NG.to(self.dtype), weight.group))

    def _pairs(self, of_NG: Tensor, group: int) -> Tensor:
        """[N, groups] in 16 bits → int32 [blocks, 4, N]."""
        of_planes = of_NG.repeat_interleave(group // PLANE, 1)[:, : -(-self.num_inputs // PLANE)]
        blocks = self.num_blocks
        padded = F.pad(of_planes, (0, blocks * _PLANES - of_planes.shape[1])).view(-1, blocks, 2, _HALF)
        bits = padded.contiguous().view(torch.int16).to(torch.int32)
        return ((bits[:, :, 0] & 0xFFFF) | (bits[:, :, 1] << 16)).permute(1, 2, 0)

    def _unpacked(self) -> Tensor:
        shifts = torch.arange(0, 4 * _HALF, 4, dtype=torch.int32, device=self.words.device)
        both = torch.stack((shifts, shifts + 16), 1)[:, None]  # [4, 1, 2]
        words = self.words.unflatten(-1, (2, 1, 16, 1))
        numbers = ((words >> both) & 0xF).to(self.dtype).flatten(-2).flatten(-3, -2)  # [..., B, N, 8, 32]
        if self.zeros is None:
            numbers -= 8
        else:
            numbers -= self._halves(self.zeros)[..., None]
        whole = (numbers * self._halves(self.scales)[..., None]).flatten(-2).movedim(-3, -2)  # [..., N, B, 256]
        unpacked: Tensor = whole.flatten(-2)[..., : self.num_inputs].contiguous()
        return unpacked

    def _halves(self, pairs: Tensor) -> Tensor:
        """int32 [..., B, 4, N] → [..., B, N, 8] in the model's type."""
        both = torch.cat((pairs & 0xFFFF, (pairs >> 16) & 0xFFFF), -2).movedim(-2, -1)
        return torch.where(both >= 1 << 15, both - (1 << 16), both).to(torch.int16).view(self.dtype)
