"""Packed weights → float weights, one formula a layout; or → numbers and scales of a part, for those that stay packed.
ValueError names what does not fit.

Legend: W [N, K] float; a group is some inputs (along K) with one scale a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.packed import Grouped

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_SHIFTS = tuple(range(0, 32, 4))
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the nibbles of an int32 stand among 8 outputs: AWQ packs 0 2 4 6 1 3 5 7."""


def _check(what: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> None:
    if list(tensor.shape) != list(shape) or (dtype is not None and tensor.dtype != dtype):
        raise ValueError(
            f"{what} is {tensor.dtype} {list(tensor.shape)}; it must be {dtype or 'numbers'} {list(shape)}"
        )


def _check_scales(what: str, tensor: Tensor, shape: Sequence[int], others: Sequence[torch.dtype] = ()) -> None:
    _check(what, tensor, shape)
    if tensor.dtype not in (*_FLOATS, *others):
        raise ValueError(f"{what} is {tensor.dtype}; scales are float numbers")


def _matrix(what: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.dim() != 2:
        raise ValueError(f"{what} has shape {list(tensor.shape)}; it must have two dimensions")
    return tensor.shape[0], tensor.shape[1]


def _groups(num: int, size: int, device: torch.device) -> Tensor:
    """The group of each of `num` elements."""
    return torch.arange(num, device=device) // size


def _nibbles(packed: Tensor) -> Tensor:
    """int32 [..., n] → [..., n, 8], the lowest bits first."""
    if packed.dtype != torch.int32:
        raise ValueError(f"packed numbers are {packed.dtype}; they must be torch.int32")
    return (packed[..., None] >> torch.tensor(_SHIFTS, dtype=torch.int32, device=packed.device)) & 0xF


def _int4_shape(packed: Tensor, scale: Tensor, shape: Tensor, group: int) -> tuple[int, int]:
    """Of W, which a tensor says."""
    if shape.dtype not in (torch.int32, torch.int64) or shape.shape != (2,):
        raise ValueError(f"weight_shape is {shape.dtype} {list(shape.shape)}; it must hold two whole numbers")
    N, K = shape.tolist()
    _check("weight_packed", packed, (N, -(-K // 8)), torch.int32)
    _check_scales("weight_scale", scale, (N, -(-K // group)))
    return N, K


def int4_groups(packed: Tensor, scale: Tensor, shape: Tensor, group: int) -> Tensor:
    """compressed-tensors' pack-quantized: numbers are stored plus 8, eight along K in an int32; scale's dtype."""
    _, K = _int4_shape(packed, scale, shape, group)
    numbers = _nibbles(packed).flatten(1)[:, :K] - 8
    return numbers.to(scale.dtype) * scale[:, _groups(K, group, scale.device)]


def fp8_blocks(weight: Tensor, scale: Tensor, rows: int, columns: int) -> Tensor:
    """FP8 e4m3 times the scale of its block, in bfloat16."""
    N, K = _matrix("weight", weight)
    _check("weight", weight, (N, K), torch.float8_e4m3fn)
    _check_scales("weight_scale_inv", scale, (-(-N // rows), -(-K // columns)), [torch.float8_e8m0fnu])
    spread = scale.float()[_groups(N, rows, scale.device)][:, _groups(K, columns, scale.device)]
    return (weight.float() * spread).to(torch.bfloat16)


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, group: int) -> Tensor:
    """AWQ's gemm layout: Wᵀ, eight outputs in an int32; scales' dtype."""
    K, words = _matrix("qweight", qweight)
    N = 8 * words
    _check("qzeros", qzeros, (-(-K // group), words), torch.int32)
    _check_scales("scales", scales, (-(-K // group), N))
    order = torch.tensor(_AWQ_ORDER)
    numbers_KN = _nibbles(qweight)[..., order].flatten(1)
    zeros_GN = _nibbles(qzeros)[..., order].flatten(1)
    of_K = torch.arange(K) // group
    return ((numbers_KN - zeros_GN[of_K]).to(scales.dtype) * scales[of_K]).t().contiguous()


def _gptq_shape(qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor) -> tuple[int, int, int]:
    """K, N and the number of groups."""
    words, N = _matrix("qweight", qweight)
    G, _ = _matrix("scales", scales)
    _check_scales("scales", scales, (G, N))
    _check("qzeros", qzeros, (G, -(-N // 8)), torch.int32)
    _check("g_idx", g_idx, (8 * words,), torch.int64 if g_idx.dtype == torch.int64 else torch.int32)
    return 8 * words, N, G


def gptq(qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor) -> Tensor:
    """GPTQ: Wᵀ, eight inputs in an int32, zero points stored less 1, the group of each input beside; scales' dtype."""
    _, N, G = _gptq_shape(qweight, qzeros, scales, g_idx)
    if int(g_idx.min()) < 0 or int(g_idx.max()) >= G:
        raise ValueError(f"g_idx names groups {int(g_idx.min())} … {int(g_idx.max())}; there are {G}")
    numbers_KN = _nibbles(qweight).transpose(1, 2).flatten(0, 1)
    zeros_GN = _nibbles(qzeros).flatten(1)[:, :N] + 1
    of_K = g_idx.long()
    return ((numbers_KN - zeros_GN[of_K]).to(scales.dtype) * scales[of_K]).t().contiguous()


@dataclass(frozen=True, slots=True)
class Window:
    """A part of W [N, K]: outputs and inputs from … to."""

    rows: slice
    columns: slice
    whole: Sequence[int]
    """Of W."""
    device: torch.device
    """Where it is wanted; only the part is moved there."""

    def check(self, shape: Sequence[int], outputs: int, inputs: int) -> None:
        """Refuses another shape than W's, and to cut what lies in one word or shares one scale."""
        if list(shape) != list(self.whole):
            raise ValueError(f"it has shape {list(shape)}; the config asks for {list(self.whole)}")
        units = (outputs, inputs)
        for what, part, unit, size in zip(("outputs", "inputs"), (self.rows, self.columns), units, shape, strict=True):
            if part != slice(0, size) and (part.start % unit or part.stop % unit):
                raise ValueError(f"{what} {part.start} … {part.stop} are wanted, which are no whole groups of {unit}")

    def of(self, tensor: Tensor, rows: int = 1, columns: int = 1) -> Tensor:
        """The part of a tensor with one element for so many outputs and inputs."""
        down, across = (
            slice(part.start // unit, -(-part.stop // unit))
            for part, unit in ((self.rows, rows), (self.columns, columns))
        )
        return tensor[down, across].to(self.device)


def int4_groups_part(packed: Tensor, scale: Tensor, shape: Tensor, group: int, window: Window) -> Grouped:
    """As `int4_groups`, packed."""
    N, K = _int4_shape(packed, scale, shape, group)
    window.check((N, K), 1, group)
    numbers = _nibbles(window.of(packed, columns=8)).flatten(1)[:, : window.columns.stop - window.columns.start]
    return Grouped(numbers, window.of(scale, columns=group), None, group)


def fp8_blocks_part(weight: Tensor, scale: Tensor, rows: int, columns: int, window: Window) -> Grouped:
    """As `fp8_blocks`, packed; rows may cut a block."""
    N, K = _matrix("weight", weight)
    _check("weight", weight, (N, K), torch.float8_e4m3fn)
    _check_scales("weight_scale_inv", scale, (-(-N // rows), -(-K // columns)), [torch.float8_e8m0fnu])
    window.check((N, K), 1, columns)
    numbers_NK = weight[window.rows, window.columns].to(window.device)
    of_rows = torch.arange(window.rows.start, window.rows.stop) // rows
    across = slice(window.columns.start // columns, -(-window.columns.stop // columns))
    return Grouped(numbers_NK, scale.float()[of_rows, across].to(window.device), None, columns)


def awq_part(qweight: Tensor, qzeros: Tensor, scales: Tensor, group: int, window: Window) -> Grouped:
    """As `awq`, packed."""
    K, words = _matrix("qweight", qweight)
    N = 8 * words
    _check("qzeros", qzeros, (-(-K // group), words), torch.int32)
    _check_scales("scales", scales, (-(-K // group), N))
    window.check((N, K), 8, group)
    order = torch.tensor(_AWQ_ORDER, device=window.device)
    numbers_NK = _nibbles(window.of(qweight.t(), rows=8).t())[..., order].flatten(1).t()
    zero_NG = _nibbles(window.of(qzeros.t(), rows=8, columns=group).t())[..., order].flatten(1).t()
    return Grouped(numbers_NK, window.of(scales.t(), columns=group), zero_NG, group)


def gptq_part(qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor, group: int, window: Window) -> Grouped:
    """As `gptq`, packed, where groups follow each other."""
    K, N, _ = _gptq_shape(qweight, qzeros, scales, g_idx)
    if not torch.equal(g_idx.long(), torch.arange(K) // group):
        raise ValueError("its inputs are in the order of activations (desc_act), which only unpacking undoes")
    window.check((N, K), 8, group)
    numbers_NK = _nibbles(window.of(qweight.t(), columns=8)).flatten(1)
    zero_NG = _nibbles(window.of(qzeros.t(), rows=8, columns=group).t()).flatten(1).t() + 1
    return Grouped(numbers_NK, window.of(scales.t(), columns=group), zero_NG, group)
