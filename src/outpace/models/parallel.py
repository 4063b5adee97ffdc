"""Where ranks meet in a forward: behind each block, whose output is a sum over ranks, and in the vocabulary head.

Few tokens on a GPU: parts are gathered, and the norm behind them, which reads several summands anyway, adds them. That
is one launch less than an all-reduce, the sum is the same bits on every rank, and a row's bits do not depend on how
many rows run beside it. Who gathers, a kernel of ours over symmetric memory or the library, is measured at the start
(`sums`) and changes no bit. Many tokens, as in prefill: an all-reduce, whose bits are the same on every rank too.

Logits are gathered whole: what a rank chooses from is then every rank's same bits, even if its own hidden states were
not, so ranks cannot part, and sampling needs to know nothing of ranks. Half a megabyte at most for one row.

Legend: B rows, S tokens a row, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outpace.distributed.group import Group, Unsummed
from outpace.models.layers import Embedding
from outpace.models.linear import Linear, fuses
from outpace.models.shares import padded_share

MAX_GATHERED = 64
"""Tokens up to which parts are gathered on a GPU."""


def across(group: Group, part: Tensor, like_BSH: Tensor) -> Tensor | Unsummed:
    """The sum of all ranks' parts, as `RMSNorm.add` takes it: whole, one summand a rank, [size, B, S, H], or unsummed.

    Args:
        group: the ranks.
        part: this rank's, of `like`'s shape, or its summands in float32; it may be overwritten.
        like_BSH: what it will be added to.
    """
    if group.size == 1:
        return part
    if not fuses(like_BSH):
        return _in_rank_order(group.gather(whole(part, like_BSH)))
    if like_BSH.shape[:-1].numel() > MAX_GATHERED:
        return group.all_reduce(whole(part, like_BSH).contiguous())
    exchange = None if group.rehearsal.on else group.exchange
    if exchange is not None and exchange.adds(like_BSH.shape[:-1].numel(), like_BSH.shape[-1], like_BSH.dtype):
        return Unsummed(part.contiguous(), exchange)
    if exchange is not None and exchange.takes(like_BSH.numel(), like_BSH.dtype):
        return exchange.gather(part.contiguous(), like_BSH.dtype, joins=part.dim() > like_BSH.dim())
    return group.gather(whole(part, like_BSH))


def whole(part: Tensor, like_BSH: Tensor) -> Tensor:
    """What `Linear.summands` gave, as one tensor of `like`'s shape and dtype."""
    if part.dim() == like_BSH.dim():
        return part
    from outpace.kernels.gpu.join import join

    total: Tensor = join(part, like_BSH.dtype)
    return total


def _in_rank_order(parts: Tensor) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts.dtype)


class Head(Linear):
    """A vocabulary head: a share of the rows, filled up with zeros to the same number on every rank; whole logits."""

    def __init__(
        self,
        in_features: int,
        vocab_size: int,
        *,
        group: Group,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        share, num_rows = padded_share(group, vocab_size)
        super().__init__(in_features, num_rows, dtype=dtype, device=device)
        self.group, self.vocab_size, self.share = group, vocab_size, share
        with torch.no_grad():
            self.weight[self.share.size :] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        logits = Linear.forward(self, x)
        if self.group.size == 1:
            return logits
        parts = self.group.gather(logits)
        return parts.movedim(0, -2).flatten(-2)[..., : self.vocab_size].contiguous()

    __call__ = forward

    def tie(self, embed: Embedding) -> None:
        """Makes the weight this rank's rows of the embeddings, which move where the filling fits behind them."""
        num_rows, start = self.out_features, self.group.rank * self.out_features
        rows = embed.weight
        if self.group.size == 1:
            self.weight = rows
            return
        padded = rows.new_zeros(num_rows * self.group.size, self.in_features)
        embed.weight = nn.Parameter(padded[: self.vocab_size], requires_grad=False)
        self.weight = nn.Parameter(padded[start : start + num_rows], requires_grad=False)
