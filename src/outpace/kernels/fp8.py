"""FP8 weights (e4m3) as a GPU reads them, in PyTorch; `gpu/packed.py` unpacks them in registers.

A block is 128 inputs. Word i holds inputs 2i and 2i + 1 of its first half in bytes 0 and 2, of its second half in bytes
1 and 3. Each row has its scale in it, so blocks of a checkpoint may have any number of rows, and heads, ranks and
reordered rows may cut them.

    words  [..., K / 128, N, 32]  int32
    scales [..., K / 128, 1, N]   float32

A weight is number · scale. Kernels multiply by the number, which 16 bits hold exactly, and scale a block's sum in
float32; `unpacked` rounds the weight to the model's type, as a checkpoint that is unpacked at load has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from outpace.kernels.packed import WORDS, Grouped, PackedWeight

BLOCK = 128
"""Inputs."""


@dataclass(frozen=True, slots=True)
class Fp8(PackedWeight):
    """Weights in the layout above; there are no zeros."""

    bits = 8
    scale_bytes = 4
    name = "FP8"

    @classmethod
    def empty(cls, *lead: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Room for weights [*lead, outputs, inputs]."""
        blocks = -(-inputs // BLOCK)
        scales = torch.empty((*lead, blocks, 1, outputs), dtype=torch.float32, device=device)
        words = torch.empty((*lead, blocks, outputs, WORDS), dtype=torch.int32, device=device)
        return cls(words, scales, None, inputs, dtype)

    @classmethod
    def why_not(cls, group: int, num_inputs: int) -> str | None:
        if group % BLOCK and group < num_inputs:
            return f"its blocks are of {group} inputs; the kernels take multiples of {BLOCK}"
        return None

    def fill(self, weight: Grouped) -> None:
        if why := self.why_not(weight.group, self.num_inputs):
            raise ValueError(why)
        blocks = self.num_blocks
        bytes_NK = weight.numbers_NK.view(torch.uint8)
        if bool((bytes_NK & 0x7F == 0x7F).any()):
            raise ValueError("it holds a number that is none (NaN)")
        padded_NK = F.pad(bytes_NK, (0, blocks * BLOCK - self.num_inputs))
        halves = padded_NK.view(-1, blocks, 2, WORDS, 2)  # of the block, words, inputs
        self.words.copy_(halves.permute(1, 0, 3, 4, 2).contiguous().flatten(-2).view(torch.int32)[..., 0])
        repeats = max(1, weight.group // BLOCK) if weight.group < self.num_inputs else blocks
        self.scales.copy_(weight.scale_NG.float().repeat_interleave(repeats, 1)[:, :blocks].t()[:, None])

    def _unpacked(self) -> Tensor:
        halves = self.words[..., None].view(torch.uint8).unflatten(-1, (2, 2))  # [..., B, N, words, inputs, halves]
        numbers = halves.movedim(-1, -3).movedim(-5, -4).contiguous().view(torch.float8_e4m3fn)  # [..., N, B, 2, 32, 2]
        scale_NB = self.scales[..., 0, :].transpose(-1, -2)
        whole = (numbers.float() * scale_NB[..., None, None, None]).to(self.dtype)
        unpacked: Tensor = whole.flatten(-4)[..., : self.num_inputs].contiguous()
        return unpacked
