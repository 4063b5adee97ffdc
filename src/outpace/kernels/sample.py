"""Choosing tokens so that speculation cannot change them: shared noise keyed by (seed, position).

The token at a position is the argmax of the processed logits plus Gumbel noise, which draws exactly from their softmax
(the Gumbel-max trick). The noise depends on nothing but the request's seed, the token's position and its id, so plain
decoding, verify and the drafter all see the same noise (drafter-invariant speculative decoding, Daliri et al. 2024,
https://arxiv.org/abs/2408.07978): a draft is accepted when it equals the target's token.

Truncation keeps every logit not below a threshold that is found by bisection over the ordered bits of float32: exact,
no sort, no dependence on the order of ties, the same on every device.

Shapes: B rows, S positions a row, V token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.config import GREEDY_BELOW
from outpace.kernels.mask import mask
from outpace.kernels.process import Rules, process
from outpace.types import SamplingKind

_LOW32 = 0xFFFFFFFF
_FIXED_POINT = 2.0**40
"""Scale of summed probabilities, relative to the best token's: 2^22 tokens as likely as it do not overflow int64."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of B rows on the device, and what the host knows about the whole batch."""

    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    seed_B: Tensor
    kind: SamplingKind
    rules: Rules | None = None
    """Penalties, biases and bans; None where no row has any."""


def _mix32(x: Tensor) -> Tensor:
    """A 32-bit integer hash (constants: github.com/skeeto/hash-prospector, bias 0.107) in int64 lanes."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW32
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW32
    return x ^ (x >> 15)


def uniform(seed_B: Tensor, position_BS: Tensor, ids_V: Tensor) -> Tensor:
    """Uniform noise of (seed, position, id), never 0 and never 1, float32 [B, S, V]; arguments as `gumbel`'s."""
    low, high = _mix32(seed_B & _LOW32), _mix32((seed_B >> 32) ^ 0x5BD1E995)
    key_BS = _mix32((position_BS + low[:, None]) & _LOW32)
    salt_BS = _mix32(key_BS ^ high[:, None])
    x = _mix32(ids_V ^ key_BS[..., None])
    x = _mix32((x + salt_BS[..., None]) & _LOW32)
    return ((x >> 9).float() + 0.5) * 2.0**-23  # 24 significant bits


def gumbel(seed_B: Tensor, position_BS: Tensor, ids_V: Tensor) -> Tensor:
    """Standard Gumbel noise of (seed, position, id), float32 [B, S, V].

    Args:
        seed_B: int64, 0 … 2^63-1.
        position_BS: int64 index in the sequence of the token to be chosen.
        ids_V: int64 target token ids.
    """
    return -(-uniform(seed_B, position_BS, ids_V).log()).log()


def _ordered_bits(x: Tensor) -> Tensor:
    """int32 keys in the order of the float32 values."""
    bits = x.view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _threshold(keys: Tensor, weights: Tensor, need: Tensor) -> Tensor:
    """Largest key t, [..., 1], for which the int64 weights of all keys ≥ t sum to at least `need` [..., 1]."""
    low = torch.full_like(need, -(2**31))
    high = torch.full_like(low, 2**31 - 1)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        enough = torch.where(keys >= middle, weights, 0).sum(-1, keepdim=True) >= need
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle - 1)
    return low


def truncate(logits_BSV: Tensor, sampling: Sampling) -> Tensor:
    """Sets to -inf what top-k, then top-p, then min-p leave out; float32 logits after temperature, [B, S, V].

    A top-k of 0, a top-p of 1 and a min-p of 0 leave a row as it is. Probabilities are summed in fixed point, so that
    the sum does not depend on the order that a device adds in for one shape or another.
    """
    x = logits_BSV
    keys = _ordered_bits(x)
    V = x.shape[-1]
    top_k = torch.where(sampling.top_k_B > 0, sampling.top_k_B, V).clamp(max=V)[:, None, None]
    kept = keys >= _threshold(keys, torch.ones_like(keys, dtype=torch.int64), top_k.expand(*x.shape[:2], 1))
    weights = torch.where(kept, (x - x.amax(-1, keepdim=True)).exp(), 0.0)
    shares = (weights * _FIXED_POINT).long()
    need = (sampling.top_p_B.double()[:, None, None] * shares.sum(-1, keepdim=True)).long().clamp(min=1)
    nucleus = keys >= _threshold(keys, shares, need)
    kept &= nucleus | (sampling.top_p_B >= 1.0)[:, None, None]
    kept &= weights >= sampling.min_p_B[:, None, None]  # the best token's weight is 1
    return x.masked_fill(~kept, -torch.inf)


def choose(
    logits_BSV: Tensor,
    sampling: Sampling,
    position_BS: Tensor,
    ids_V: Tensor | None = None,
    *,
    ahead: int = 0,
    drafts_BK: Tensor | None = None,
    allowed_BSW: Tensor | None = None,
) -> Tensor:
    """Each position's token, int64 [B, S]; greedy rows take the argmax.

    Args:
        logits_BSV: any float dtype.
        sampling: settings of the B rows.
        position_BS: index in the sequence of the token to be chosen, less `ahead`.
        ids_V: target ids that the V logits stand for; None means 0 … V-1.
        ahead: added to the positions.
        drafts_BK: what was drafted behind each row's newest token; the last of S places sees all of it.
        allowed_BSW: packed masks of ids 0 … V-1; None admits all.
    """
    if sampling.rules is not None:
        drafts_BK = position_BS[:, :0] if drafts_BK is None else drafts_BK
        logits_BSV = _spread(logits_BSV, ids_V, sampling.rules.counts_BV.shape[1])
        logits_BSV, ids_V = process(logits_BSV, sampling.rules, position_BS + ahead, drafts_BK), None
    if allowed_BSW is not None:
        logits_BSV = mask(logits_BSV, allowed_BSW)
    if logits_BSV.is_cuda:
        return _choose_on_gpu(logits_BSV, sampling, position_BS, ids_V, ahead)
    index_BS = _best(logits_BSV, sampling, position_BS + ahead, ids_V)
    return index_BS if ids_V is None else ids_V[index_BS]


def _spread(logits_BSV: Tensor, ids_V: Tensor | None, num_ids: int) -> Tensor:
    """Logits of some ids as logits of all; -inf for the others."""
    if ids_V is None:
        return logits_BSV
    all_BSV = logits_BSV.new_full((*logits_BSV.shape[:2], num_ids), -torch.inf)
    return all_BSV.index_copy_(2, ids_V, logits_BSV)


def _best(logits_BSV: Tensor, sampling: Sampling, position_BS: Tensor, ids_V: Tensor | None) -> Tensor:
    if sampling.kind is SamplingKind.GREEDY:
        return logits_BSV.argmax(-1)
    greedy = (sampling.temperature_B < GREEDY_BELOW)[:, None, None]
    x = logits_BSV.float() / torch.where(greedy, 1.0, sampling.temperature_B[:, None, None])
    scores = truncate(x, sampling) if sampling.kind is SamplingKind.TRUNCATED else x
    ids_V = torch.arange(x.shape[-1], device=x.device) if ids_V is None else ids_V
    noisy = scores + gumbel(sampling.seed_B, position_BS, ids_V)
    return torch.where(greedy, x, noisy).argmax(-1)


def _choose_on_gpu(
    logits_BSV: Tensor, sampling: Sampling, position_BS: Tensor, ids_V: Tensor | None, ahead: int
) -> Tensor:
    from outpace.kernels.gpu.sample import choose
    from outpace.kernels.gpu.truncate import cut

    left_out = None
    if sampling.kind is SamplingKind.TRUNCATED:
        found = cut(
            logits_BSV,
            sampling.temperature_B,
            sampling.top_k_B,
            sampling.top_p_B,
            greedy_below=GREEDY_BELOW,
            fixed_point=_FIXED_POINT,
        )
        left_out = (*found, sampling.min_p_B)
    return choose(
        logits_BSV,
        sampling.temperature_B,
        sampling.seed_B,
        position_BS.contiguous(),
        ids_V,
        sampled=sampling.kind is not SamplingKind.GREEDY,
        greedy_below=GREEDY_BELOW,
        ahead=ahead,
        cut=left_out,
    )
