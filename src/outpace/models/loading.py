"""Filling a model from named tensors, and saying exactly which ones do not fit.

A slot is a view into a parameter: three tensors of a file may fill three row ranges of one fused weight, and where
ranks share a model a slot takes this rank's part alone. Tensors are fetched one at a time, so a lazy mapping never
holds the whole checkpoint beside the model; a safetensors file is mapped, so what is cut away is not even read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from outpace.errors import CheckpointError
from outpace.models.packed import PackedSlot
from outpace.models.shares import Share


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor of the checkpoint goes, or the share of it that this rank holds."""

    tensor: Tensor
    share: Share | None = None
    """Along `dim`; None is all of it."""
    dim: int = 0

    @property
    def shape(self) -> torch.Size:
        """Of the tensor in the checkpoint."""
        shape = list(self.tensor.shape)
        if self.share is not None:
            shape[self.dim] = self.share.whole
        return torch.Size(shape)

    def take(self, tensor: Tensor) -> None:
        """Copies what is this rank's out of a tensor of `shape`."""
        if self.share is not None:
            tensor = tensor.narrow(self.dim, self.share.start, self.share.size)
        self.tensor.copy_(tensor)


FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

_MAX_NAMES = 4


def fill(
    slots: Mapping[str, Slot | PackedSlot],
    tensors: Mapping[str, Tensor],
    *,
    optional: Collection[str] = (),
    taken: Callable[[], None] | None = None,
) -> None:
    """Copies every tensor into its slot, converting type and device on the way.

    Args:
        slots: what must come, by name.
        tensors: what there is. `*.rotary_emb.inv_freq` buffers of old checkpoints are ignored.
        optional: names that may come and are then ignored (a head that is tied to the embeddings).
        taken: called after each.

    Raises:
        CheckpointError: names what is missing, unknown, misshaped, not of a float type or not finite; names are checked
            before anything is copied.
    """
    names = {name for name in tensors if not name.endswith("rotary_emb.inv_freq")} - set(optional)
    if missing := sorted(set(slots) - names):
        raise CheckpointError(
            f"the checkpoint lacks {_listed(missing)}; it is incomplete or of another architecture than its config says"
        )
    if extra := sorted(names - set(slots)):
        raise CheckpointError(
            f"the checkpoint holds {_listed(extra)}, which this architecture does not have; "
            "it would be ignored, so the config does not describe these weights"
        )
    with torch.no_grad():
        for name in tensors:
            if name not in names:
                continue
            slot = slots[name]
            if isinstance(slot, PackedSlot):
                slot.take(name, tensors)
            else:
                slot.take(_checked(name, tensors[name], slot.shape))
                _check_finite(name, slot.tensor)
            if taken is not None:
                taken()


def _checked(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    if tensor.dtype not in FLOAT_TYPES:
        raise CheckpointError(
            f"tensor {name} is {tensor.dtype}; weights must be float32, float16 or bfloat16: "
            "use the checkpoint before it was quantised, or a GGUF file"
        )
    if tensor.shape != shape:
        raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}; the config asks for {list(shape)}")
    return tensor


def _check_finite(name: str, taken: Tensor) -> None:
    """As the model holds it: float16 has no room for large numbers of bfloat16."""
    if taken.is_meta or not taken.numel():
        return
    low, high = (float(number) for number in torch.aminmax(taken))  # a number that is none shows in both
    if not (isfinite(low) and isfinite(high)):
        raise CheckpointError(
            f"tensor {name} holds numbers that are not finite in {taken.dtype}: the file is damaged, or needs a wider "
            "dtype (--dtype)"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown
