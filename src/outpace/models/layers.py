"""The layers that targets and drafters are made of, with as few device calls a token as they can be written in.

Queries, keys and values are one product, gate and up another (`linear`). Layers know nothing of caches or masks:
whoever runs the model passes `attend`. With a `group` a layer holds one rank's share, and what it gives is this rank's
summand of its output: whoever runs it adds those of all ranks (`parallel`). Weights are left uninitialised: they are
loaded, or initialised by the trainer. `__call__` is `forward` itself: hooks are not supported, and running nn.Module's
search for them 270 times a token took a millisecond.

Legend: B rows, S tokens a row, H hidden, N heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace.distributed.group import ALONE, Group, Unsummed
from outpace.kernels.attention import PagedAttend
from outpace.models.linear import Linear, SummandLinear, fuses
from outpace.models.rope import Rotary, rotate
from outpace.models.shares import even_share, kv_share

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q_BSND [B, S, num_heads, D], k [B, S, num_kv_heads, D], v) → o [B, S, num_heads, D], where the
scale is D ** -0.5 and the layer's window is known to whoever built it."""


class Embedding(nn.Module):
    """Token ids → rows of `weight` [V, H]."""

    def __init__(
        self,
        num_rows: int,
        hidden_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, hidden_size, dtype=dtype, device=device))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)

    __call__ = forward


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension (Zhang and Sennrich 2019), in float32 inside."""

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.eps = eps
        self.shape = (size,)
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        if fuses(x):
            from outpace.kernels.gpu.norm import add_rms_norm

            return add_rms_norm(x, None, self.weight, self.eps)[1]
        return F.rms_norm(x, self.shape, self.weight, self.eps)

    __call__ = forward

    def add(self, x: Tensor, delta: Tensor | Unsummed | None) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm); without a delta x itself. It may come as summands do, or as `across` gives it."""
        if isinstance(delta, Unsummed):
            return delta.exchange.add_and_norm(x, delta.part, self.weight, self.eps)
        if fuses(x):
            from outpace.kernels.gpu.norm import add_rms_norm

            return add_rms_norm(x, delta, self.weight, self.eps)
        total = x if delta is None else x + delta
        return total, F.rms_norm(total, self.shape, self.weight, self.eps)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up in one product (`gate_up`, gate's rows first); as `Linear.summands`."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        group: Group = ALONE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        width = even_share(group, intermediate_size).size
        self.gate_up = Linear(hidden_size, 2 * width, bias=bias, dtype=dtype, device=device)
        self.down = SummandLinear(intermediate_size, hidden_size, group=group, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        if fuses(x):
            return self.down.summands(self.activated(self.product(x), x))
        gate_up = self.gate_up(x)
        gate, up = gate_up.chunk(2, -1)
        return self.down(F.silu(gate) * up)

    __call__ = forward

    def product(self, x: Tensor) -> Tensor:
        """On a GPU: gate and up of x, in whatever form is fastest, for `activated`."""
        from outpace.kernels.gpu.linear import splits_gate

        if splits_gate(self.gate_up.out_features, self.gate_up.in_features):
            return self.gate_up.summands(x)
        found = self.gate_up.by_kernel(x, gated=True)
        return self.gate_up(x) if found is None else found

    def activates_apart(self, product: Tensor) -> bool:
        """Whether `activated` launches a kernel behind the product: one, that lets the next one in behind its wait."""
        return product.shape[-1] != self.down.in_features

    def activated(self, product: Tensor, x: Tensor) -> Tensor:
        """On a GPU: silu(gate) · up of x's `product`; the product itself if it has done that."""
        from outpace.kernels.gpu.activation import silu_mul

        if not self.activates_apart(product):
            return product
        return silu_mul(product, x.dtype, parts=len(product) if product.dim() > x.dim() else 1)

    def into(self, out: Tensor, activated: Tensor) -> None:
        """On a GPU, for few rows: writes the output into `out`, float32 [M, H]."""
        from outpace.kernels.gpu.linear import multiply
        from outpace.kernels.gpu.packed_linear import multiply_packed

        if self.down.held is None:
            multiply(activated, self.down.weight, self.down.bias, out=out)
        else:
            multiply_packed(activated, self.down.held, self.down.bias, out=out)


class Attention(nn.Module):
    """Grouped-query attention. Its input may be wider than the model (`in_features`): EAGLE-3 feeds two states.

    `qkv` holds the rows of queries, keys, values in this order, of the heads that are this rank's. With `qk_norm` every
    query and key head is RMS-normed before it is turned, as Qwen3 does. What comes out may be `Linear.summands`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        qkv_bias: bool = False,
        output_bias: bool = False,
        qk_norm_eps: float | None = None,
        group: Group = ALONE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = even_share(group, num_heads), kv_share(group, num_kv_heads), head_dim
        self.num_heads, self.num_kv_heads = self.heads.size, self.kv_heads.size
        num_rows = (self.num_heads + 2 * self.num_kv_heads) * head_dim
        self.qkv = Linear(in_features, num_rows, bias=qkv_bias, dtype=dtype, device=device)
        self.output = SummandLinear(
            num_heads * head_dim, hidden_size, group=group, bias=output_bias, dtype=dtype, device=device
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_dim, qk_norm_eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(head_dim, qk_norm_eps, dtype=dtype, device=device)

    def forward(self, x_BSH: Tensor, rotary: Rotary, attend: Attend, layer_index: int) -> Tensor:
        num_heads, num_kv_heads = self.num_heads, self.num_kv_heads
        if isinstance(attend, PagedAttend) and fuses(x_BSH):
            few = attend.takes_few(x_BSH.shape[1], num_heads, num_kv_heads)
            qkv = self.qkv.summands(x_BSH) if few else self.qkv(x_BSH)
            return self.output.summands(attend.from_product(layer_index, qkv, rotary, self._norms(), num_heads))
        qkv = self.qkv(x_BSH)
        qkv_BSND = qkv.view(*qkv.shape[:2], -1, self.head_dim)
        qk, v = qkv_BSND.split_with_sizes((num_heads + num_kv_heads, num_kv_heads), 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split_with_sizes((num_heads, num_kv_heads), 2)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), 2)
        q, k = rotate(qk, rotary).split_with_sizes((num_heads, num_kv_heads), 2)
        return self.output(attend(layer_index, q, k, v).flatten(2))

    __call__ = forward

    def store(self, x_BSH: Tensor, rotary: Rotary, attend: PagedAttend, layer_index: int) -> None:
        """Keys and values alone, of tokens whose output nobody asks for."""
        kv = self.qkv.from_row(x_BSH, self.num_heads * self.head_dim)
        kv_BSND = kv.view(*kv.shape[:2], -1, self.head_dim)
        if fuses(x_BSH):
            attend.store_product(layer_index, kv_BSND, rotary, self._norms())
            return
        k, v = kv_BSND.chunk(2, 2)
        if self.k_norm is not None:
            k = self.k_norm(k)
        attend.store(layer_index, rotate(k, rotary), v)

    def tiling_changes(self, most: int) -> list[int]:
        """Numbers of tokens up to `most`, ascending: for each tiling that a GPU takes for one row, the longest."""
        from outpace.kernels.gpu.walk import tiling_of

        head_bytes = self.head_dim * self.qkv.weight.dtype.itemsize
        lengths = [*(1 << power for power in range((most - 1).bit_length())), most]
        return sorted(
            {tiling_of(1, num, self.num_heads, self.num_kv_heads, head_bytes, None): num for num in lengths}.values()
        )

    def _norms(self) -> tuple[Tensor, Tensor, float] | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm.weight, self.k_norm.weight, self.q_norm.eps
