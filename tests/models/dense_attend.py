"""The plainest attention there is, in float64, as the `attend` that tests pass to models.

Legend: B rows, S tokens a row, N heads, T tokens so far, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class DenseAttend:
    """Causal attention over everything that each layer was shown, call after call.

    Args:
        windows: how many tokens each layer sees, None for all.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.windows = windows
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q_BSND: Tensor, k_BSND: Tensor, v_BSND: Tensor) -> Tensor:
        if layer in self.seen:
            k_BSND = torch.cat((self.seen[layer][0], k_BSND), 1)
            v_BSND = torch.cat((self.seen[layer][1], v_BSND), 1)
        self.seen[layer] = (k_BSND, v_BSND)
        group = q_BSND.shape[2] // k_BSND.shape[2]
        k, v = (x.repeat_interleave(group, 2).double() for x in (k_BSND, v_BSND))
        scores_BNST = torch.einsum("bsnd,btnd->bnst", q_BSND.double(), k) * q_BSND.shape[-1] ** -0.5
        visible_ST = self._visible(layer, q_BSND.shape[1], k.shape[1])
        weights_BNST = scores_BNST.masked_fill(~visible_ST, -torch.inf).softmax(-1)
        return torch.einsum("bnst,btnd->bsnd", weights_BNST, v).to(q_BSND.dtype)

    def _visible(self, layer: int, num_queries: int, num_keys: int) -> Tensor:
        query = torch.arange(num_keys - num_queries, num_keys)[:, None]
        age = query - torch.arange(num_keys)
        window = self.windows[layer]
        return (age >= 0) & (age < (num_keys if window is None else window))
