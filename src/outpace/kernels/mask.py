"""Masks: at each position, tokens that a grammar does not admit get no probability.

A mask is packed, one bit a token id, lowest first, in int32 words: that is how the host's grammar library writes it,
and it is an eighth of what a byte a token would take on its way to the device.

Shapes: B rows, S positions a row, V token ids, W = ⌈V / 32⌉ words or more.
"""

from __future__ import annotations

import torch
from torch import Tensor

EVERY = -1
"""A word that admits all of its tokens."""


def num_words(num_ids: int) -> int:
    """Words that hold a bit for each id."""
    return -(-num_ids // 32)


def mask(logits_BSV: Tensor, allowed_BSW: Tensor) -> Tensor:
    """Logits with -inf where a token's bit is 0; a new tensor of the same dtype.

    Args:
        logits_BSV: any float dtype.
        allowed_BSW: int32, packed.
    """
    if logits_BSV.is_cuda:
        from outpace.kernels.gpu.mask import mask

        return mask(logits_BSV, allowed_BSW)
    return logits_BSV.masked_fill(~unpack(allowed_BSW, logits_BSV.shape[-1]), -torch.inf)


def unpack(allowed_BSW: Tensor, num_ids: int) -> Tensor:
    """bool [B, S, num_ids]."""
    bits = allowed_BSW[..., None] >> torch.arange(32, dtype=torch.int32, device=allowed_BSW.device)
    return (bits & 1).bool().flatten(-2)[..., :num_ids]
