"""Weights that stay packed on a GPU: what their layouts have in common. `int4` and `fp8` say what the numbers mean.

A block is as many inputs of W [N, K] as lie in the 32 words (int32) that a row has in it. A row of a block is 128 bytes
and its neighbours lie beside it, so a thread loads 16 bytes at a time. The same bits of both halves of a word are two
neighbouring inputs: unpacked they are the two numbers that a register of the tensor cores' operand holds, and nothing
moves to another place in it or to another thread.

    words  [..., K / block, N, 32]  int32

Inputs are filled up to whole blocks, with scales of 0 or numbers of 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

WORDS = 32
"""Of a row in a block."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A weight, or a part of one, as its checkpoint packs it: numbers without their scales."""

    numbers_NK: Tensor
    """0 … 15, int32; or float8_e4m3fn."""
    scale_NG: Tensor
    zero_NG: Tensor | None
    """0 … 16; None is none for FP8, 8 everywhere for INT4."""
    group: int
    """Inputs that share a scale."""


@dataclass(frozen=True, slots=True)
class PackedWeight(ABC):
    """Weights in a layout of the kernels; leading dimensions are several of them."""

    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    num_inputs: int
    dtype: torch.dtype
    """Of the model: bfloat16 or float16."""

    bits: ClassVar[int]
    """Of a number."""
    scale_bytes: ClassVar[int]
    """Of a row of a block's scales, and as many of its zeros if there are some."""
    name: ClassVar[str]

    @classmethod
    def block(cls) -> int:
        """Inputs of a block."""
        return WORDS * 32 // cls.bits

    @classmethod
    def bytes_of(cls, outputs: int, inputs: int) -> int:
        """Of a weight [outputs, inputs], zeros left out."""
        return -(-inputs // cls.block()) * outputs * (4 * WORDS + cls.scale_bytes)

    @classmethod
    @abstractmethod
    def why_not(cls, group: int, num_inputs: int) -> str | None:
        """Why a scale for each so many inputs does not fit the layout; None if it does."""

    @abstractmethod
    def fill(self, weight: Grouped) -> None:
        """Takes one weight [N, K].

        Raises:
            ValueError: it does not fit the layout.
        """

    def layout(self, num_inputs: int) -> dict[str, Any]:
        """What a kernel that multiplies so many inputs by it has to know at compile time."""
        even = num_inputs % self.block() == 0
        return {"BITS": self.bits, "HAS_ZEROS": self.zeros is not None, "EVEN": even}

    def unpacked(self) -> Tensor:
        """The weights [..., N, K] in the model's type."""
        if not self.words.is_cuda:
            return self._unpacked()
        from outpace.kernels.gpu.packed import unpack

        tensors = self.words, self.scales, self.zeros
        whole: Tensor = unpack(*tensors, num_inputs=self.num_inputs, bits=self.bits, dtype=self.dtype)
        return whole

    @abstractmethod
    def _unpacked(self) -> Tensor:
        """The same, in PyTorch."""

    def __getitem__(self, index: int) -> Self:
        """One of several weights; a view."""
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, words=self.words[index], scales=self.scales[index], zeros=zeros)

    def rows(self, start: int, size: int) -> Self:
        """A range of outputs; a view."""
        zeros = None if self.zeros is None else self.zeros.narrow(-1, start, size)
        words, scales = self.words.narrow(-2, start, size), self.scales.narrow(-1, start, size)
        return replace(self, words=words, scales=scales, zeros=zeros)

    def reorder(self, order_N: Tensor) -> None:
        """Output i becomes what output order[i] was."""
        self.words.copy_(self.words.index_select(-2, order_N))
        for of_rows in (self.scales, self.zeros):
            if of_rows is not None:
                of_rows.copy_(of_rows.index_select(-1, order_N))

    @property
    def num_blocks(self) -> int:
        return self.words.shape[-3]

    @property
    def num_outputs(self) -> int:
        return self.words.shape[-2]

    @property
    def num_bytes(self) -> int:
        tensors = (self.words, self.scales, self.zeros)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)
