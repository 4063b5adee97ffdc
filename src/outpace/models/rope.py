"""Rotary positions: cos and sin for the tokens of one forward, and the frequencies of every scaling kind.

cos and sin are computed from the positions at each forward, once for all layers, and never kept as a table of
max_positions rows: a table of a 128k context costs more memory than it saves time. Frequencies and angles are
float32 whatever the model's dtype, as in transformers' `modeling_rope_utils`, which the tests compare with.

Legend: B rows, S tokens a row, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outpace.models.arch import RopeConfig

Rotary = tuple[Tensor, Tensor]
"""(cos_BS1D, sin_BS1D); the first half of sin is negated, so that no sign is left for the layers."""


class RotaryEmbedding(nn.Module):
    """Positions → `Rotary`. The frequencies stay float32 when the module is cast."""

    inv_freq: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.rope, self.head_dim = rope, head_dim
        self.scale = attention_scale(rope)
        self.register_buffer("inv_freq", inverse_frequencies(rope, head_dim).to(device), persistent=False)

    def forward(self, positions_BS: Tensor, dtype: torch.dtype, ahead: int = 0) -> Rotary:
        """Angles of positions + ahead, those below 0 taken for 0."""
        if positions_BS.is_cuda:
            from outpace.kernels.gpu.rope import angles

            return angles(positions_BS, self.inv_freq, self.scale, dtype, ahead)
        if ahead:
            positions_BS = (positions_BS + ahead).clamp(min=0)
        half_BSd = positions_BS[..., None].float() * self.inv_freq
        cos, sin = half_BSd.cos(), half_BSd.sin()
        if self.scale != 1.0:
            cos, sin = cos * self.scale, sin * self.scale
        cos_BSD, sin_BSD = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos_BSD.to(dtype).unsqueeze(-2), sin_BSD.to(dtype).unsqueeze(-2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.inv_freq = inverse_frequencies(self.rope, self.head_dim).to(self.inv_freq.device)
        return self


def rotate(x_BSND: Tensor, rotary: Rotary) -> Tensor:
    """Turns every head of x by its token's angles (the two halves of D are the pairs, as in transformers)."""
    cos_BS1D, sin_BS1D = rotary
    return torch.addcmul(x_BSND * cos_BS1D, x_BSND.roll(x_BSND.shape[-1] // 2, -1), sin_BS1D)


def attention_scale(rope: RopeConfig) -> float:
    """yarn's factor on cos and sin (Peng et al. 2023, arXiv:2309.00071, equation 22); 1 for the other kinds."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair, float32 [head_dim / 2], on the CPU."""
    freq = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match rope.kind:
        case "default":
            return freq
        case "linear":
            return freq / rope.factor
        case "llama3":
            return _llama3(freq, rope)
        case "yarn":
            return _yarn(freq, rope, head_dim)


def _llama3(freq: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, and those between are blended."""
    wavelength = 2 * math.pi / freq
    turns = rope.original_max_positions / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * freq / rope.factor + blend * freq


def _yarn(freq: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN: pairs that turn more than beta_fast times over the original context are kept, slow ones stretched."""

    def dimension(num_turns: float) -> float:
        waves = rope.original_max_positions / (num_turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return stretched * freq / rope.factor + (1.0 - stretched) * freq
