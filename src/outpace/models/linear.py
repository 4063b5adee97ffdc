"""Matrix products: y = x Wᵀ + b, whole or cut along their inputs, in whatever layout and kernel suits the device.

On a CPU at one to sixteen tokens the time goes to reading weights and to launching operations, so what is fed the same
input is one product. Weights are left uninitialised: they are loaded, or initialised by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace.distributed.group import Group
from outpace.kernels.packed import PackedWeight
from outpace.models.onednn import can_pack
from outpace.models.shares import even_share

MAX_LONE_INPUTS = 1024
"""Up to here oneDNN sums a row alone as it sums it among others; beyond, it splits a lone row's sum in another way."""


class Linear(nn.Module):
    """y = x Wᵀ + b. `weight` is [out, in]; `pack` trades it for the layout that a CPU multiplies fastest.

    A packed 16-bit product gives a row the same bits whether it comes alone (a plain step) or with others (a verify).
    """

    weight: Tensor
    bias: Tensor | None
    multiply: Callable[..., Tensor]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device)) if bias else None
        self.prepacked: Tensor | None = None
        """In oneDNN's own layout: what `pack` makes of `weight`."""
        self.held: PackedWeight | None = None
        """As the checkpoint packs it, in place of `weight`."""
        self.doubles_lone_rows = False

    def forward(self, x: Tensor) -> Tensor:
        if self.prepacked is None:
            found = self.by_kernel(x)
            return F.linear(x, self.plain_weight, self.bias) if found is None else found
        if self.doubles_lone_rows and x.numel() == self.in_features:
            return self.multiply(torch.stack((x, x)), self.prepacked, self.bias, "none", [], "")[0]
        return self.multiply(x, self.prepacked, self.bias, "none", [], "")

    __call__ = forward

    def summands(self, x: Tensor) -> Tensor:
        """y, or on a GPU, where few rows would leave it half idle, summands of y: [C, ..., out] in float32."""
        found = self.by_kernel(x, splits=True)
        return self(x) if found is None else found

    def by_kernel(self, x: Tensor, *, gated: bool = False, splits: bool = False) -> Tensor | None:
        """As `kernels.gpu.linear.multiply`, on a GPU and for few rows; None where no kernel of ours takes it."""
        if self.prepacked is not None or not fuses(x):
            return None
        from outpace.kernels.gpu import linear, packed_linear

        if self.held is None:
            fits = linear.fits(x, self.weight)
            return linear.multiply(x, self.weight, self.bias, gated=gated, splits=splits) if fits else None
        fits = packed_linear.fits_packed(x, self.held)
        return packed_linear.multiply_packed(x, self.held, self.bias, gated=gated, splits=splits) if fits else None

    def from_row(self, x: Tensor, first: int) -> Tensor:
        """y without its first outputs, contiguous."""
        if self.prepacked is not None or self.held is not None:
            return self(x)[..., first:].contiguous()
        return F.linear(x, self.weight[first:], None if self.bias is None else self.bias[first:])

    @property
    def plain_weight(self) -> Tensor:
        """`weight`, unpacked if it is held packed."""
        return self.weight if self.held is None else self.held.unpacked()

    def hold(self, room: PackedWeight) -> None:
        """Before loading: takes the weight packed, in that room, instead of the plain one."""
        del self.weight
        self.held = room

    @torch.no_grad()
    def reorder(self, order: Tensor) -> None:
        """After loading: output i becomes what output order[i] was."""
        if self.held is None:
            self.weight.copy_(self.weight[order])
        else:
            self.held.reorder(order.to(self.held.words.device))
        if self.bias is not None:
            self.bias.copy_(self.bias[order])

    def pack(self) -> bool:
        """For inference on a CPU: reorders the weight for oneDNN and drops the plain one. Says whether it did."""
        if self.prepacked is None and self.held is None and can_pack(self.weight):
            self.multiply = torch.ops.mkldnn._linear_pointwise.default
            self.prepacked = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
            self.doubles_lone_rows = self.in_features > MAX_LONE_INPUTS and self.weight.dtype.itemsize == 2
            del self.weight
        return self.prepacked is not None


class SummandLinear(Linear):
    """A product cut along its inputs: this rank's columns of W, which give a summand of y. The first rank adds b."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Group,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        columns = even_share(group, in_features)
        here = bias and group.rank == 0
        super().__init__(columns.size, out_features, bias=here, dtype=dtype, device=device)
        self.columns = columns
        self.bias_elsewhere = bias and not here


def pack(model: nn.Module) -> bool:
    """Readies a loaded model for inference, for good: it is neither trained, cast nor moved afterwards.

    Packs every `Linear`, and puts children and weights where Python finds them without `nn.Module.__getattr__`,
    which costs a 30-layer model a millisecond a forward on a CPU.

    Returns:
        Whether every product was packed.
    """
    packed = [module.pack() for module in model.modules() if isinstance(module, Linear)]
    for module in model.modules():
        module.__dict__.update(module._modules)
        module.__dict__.update(module._parameters)
    return all(packed)


def fuses(x: Tensor) -> bool:
    """Whether fused kernels take part: on a GPU, where nobody needs gradients."""
    return x.is_cuda and not torch.is_grad_enabled()
