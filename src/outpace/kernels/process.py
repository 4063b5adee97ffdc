"""Penalties, biases and bans: what a request changes in the target's logits before temperature, at every position.

A position's penalties depend on the tokens before it, drafts of the same verify among them. They are computed for the
whole vocabulary as they stand before the first draft, and once more for the few ids that were drafted, so a verify of
k + 1 places gives, to the bit, what k + 1 forwards of one give. PyTorch on every device: static shapes, no value read
on the host, no result that depends on the order that threads come in.

Shapes: B rows, S places a row, K drafts before the last place, V token ids, J biases, W bad words of T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What B rows want processed, and what of their past it depends on. Rows that want nothing have neutral values."""

    repetition_B: Tensor
    frequency_B: Tensor
    presence_B: Tensor
    counts_BV: Tensor
    """int32: how often the answer has each token."""
    in_prompt_BV: Tensor
    """bool."""
    bias_ids_BJ: Tensor
    """int64; unused entries repeat a used one, or are id 0 with value -0.0, which changes no number."""
    bias_values_BJ: Tensor
    stops_BV: Tensor
    """bool: tokens that end the answer."""
    stops_from_B: Tensor
    """int64 position before which they are banned."""
    words_BWT: Tensor
    """int64 bad words, filled with -1 in front; an unused one is all -1."""
    recent_BT: Tensor
    """int64: the T - 1 newest tokens, filled with -1 in front."""


def process(logits_BSV: Tensor, rules: Rules, position_BS: Tensor, drafts_BK: Tensor) -> Tensor:
    """Logits after repetition, frequency and presence penalties, biases and bans, in this order; float32 [B, S, V].

    Args:
        logits_BSV: any float dtype; of the last S of K + 1 places, so place s sees the first K + 1 - S + s drafts.
        rules: of the B rows.
        position_BS: index in the sequence of the token to be chosen.
        drafts_BK: tokens behind each row's newest one.
    """
    x_BSV = logits_BSV.float()
    first = drafts_BK.shape[1] + 1 - x_BSV.shape[1]
    place_S = torch.arange(first, drafts_BK.shape[1] + 1, device=x_BSV.device)
    x_BSV = _penalise(x_BSV, rules, drafts_BK, place_S)
    ids_BSJ = rules.bias_ids_BJ[:, None].expand(-1, x_BSV.shape[1], -1)
    x_BSV = x_BSV.scatter(-1, ids_BSJ, x_BSV.gather(-1, ids_BSJ) + rules.bias_values_BJ[:, None])
    early_BS = position_BS < rules.stops_from_B[:, None]
    x_BSV = x_BSV.masked_fill_(rules.stops_BV[:, None] & early_BS[..., None], -torch.inf)
    return _ban_words(x_BSV, rules, drafts_BK, first)


def _penalise(x_BSV: Tensor, rules: Rules, drafts_BK: Tensor, place_S: Tensor) -> Tensor:
    """Penalties for all ids as before the first draft, then for the drafted ids as at each place.

    An id that was drafted more than once is written more than once, with one and the same value.
    """
    penalties = [p[:, None, None] for p in (rules.repetition_B, rules.frequency_B, rules.presence_B)]
    found_BSV = _penalised(x_BSV, rules.counts_BV[:, None], rules.in_prompt_BV[:, None], *penalties)
    num_drafts = drafts_BK.shape[1]
    if not num_drafts:
        return found_BSV
    before_SK = torch.arange(num_drafts, device=x_BSV.device) < place_S[:, None]
    same_BKK = drafts_BK[:, :, None] == drafts_BK[:, None, :]
    drafted_BSK = (same_BKK[:, None] & before_SK[None, :, None, :]).sum(-1)
    counts_BSK = rules.counts_BV.gather(1, drafts_BK)[:, None] + drafted_BSK
    in_prompt_B1K = rules.in_prompt_BV.gather(1, drafts_BK)[:, None]
    ids_BSK = drafts_BK[:, None].expand(-1, x_BSV.shape[1], -1)
    again_BSK = _penalised(x_BSV.gather(-1, ids_BSK), counts_BSK, in_prompt_B1K, *penalties)
    return found_BSV.scatter_(-1, ids_BSK, again_BSK)


def _penalised(
    x: Tensor, counts: Tensor, in_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """Elementwise, so that a value has the same bits wherever it is computed; a new tensor."""
    there = counts > 0
    x = torch.where(there | in_prompt, torch.where(x > 0, x / repetition, x * repetition), x)
    return x - frequency * counts - presence * there


def _ban_words(x_BSV: Tensor, rules: Rules, drafts_BK: Tensor, first: int) -> Tensor:
    """Bans the last token of every bad word whose other tokens stand right before a place."""
    reach = rules.recent_BT.shape[1]
    window_BST = torch.cat((rules.recent_BT, drafts_BK), 1).unfold(1, reach, 1)[:, first:]
    head_BWT, last_BW = rules.words_BWT[..., :-1], rules.words_BWT[..., -1]
    fits_BSWT = (head_BWT[:, None] == window_BST[:, :, None]) | (head_BWT[:, None] < 0)
    banned_BSW = fits_BSWT.all(-1) & (last_BW >= 0)[:, None]
    limits_BSW = x_BSV.new_full(banned_BSW.shape, torch.inf).masked_fill_(banned_BSW, -torch.inf)
    ids_BSW = last_BW.clamp(min=0)[:, None].expand_as(limits_BSW)
    return x_BSV.scatter_reduce(-1, ids_BSW, limits_BSW, "amin")
