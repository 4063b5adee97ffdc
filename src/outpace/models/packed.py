"""Weights that stay packed in memory: which ones, decided before anything is allocated, and how they come there.

On a GPU the experts of a checkpoint in INT4 or FP8 stay so, and so do its other products: their bytes are what a step
of few tokens takes. What no kernel reads packed is unpacked as it is loaded, and so is all of it on a CPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outpace.config import Weights
from outpace.distributed.group import Group
from outpace.errors import CheckpointError, ConfigError
from outpace.kernels.fp8 import Fp8
from outpace.kernels.int4 import Int4
from outpace.kernels.packed import Grouped, PackedWeight
from outpace.models.arch import TargetConfig
from outpace.models.shares import Share, even_share
from outpace.wording import count_of

Format = Literal["int4", "int4_zeros", "fp8"]
"""How weights lie packed: INT4 around 8, INT4 with zero points, FP8."""


def layout_of(form: Format) -> type[PackedWeight]:
    """The class of weights in that format."""
    return Fp8 if form == "fp8" else Int4


class PackedTensors(Mapping[str, Tensor]):
    """A checkpoint's tensors, unpacked when they are asked for by name, some of which can be had as they are."""

    form: Format | None
    """None if there is no layout of these weights on a GPU."""
    group: int | None
    """Inputs that share a scale, where there is a `form`."""
    note: str
    """What they are, in words."""

    @abstractmethod
    def packs(self, name: str) -> bool:
        """Whether the tensor is packed."""

    @abstractmethod
    def grouped(self, name: str, shape: torch.Size, share: Share, dim: int, device: torch.device) -> Grouped:
        """A packed tensor of that shape, or the share of it along `dim`, as it is packed.

        Raises:
            CheckpointError: parts are missing or misshaped, or the share cuts a group.
        """


@dataclass(frozen=True, slots=True)
class Packing:
    """What of a target stays packed."""

    layers: frozenset[int]
    """Those whose experts do."""
    form: Format
    products: frozenset[tuple[int, str]] = frozenset()
    """Others that do: a layer, and where in it the product is."""

    def room(
        self, *lead: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str
    ) -> PackedWeight:
        """For weights [*lead, outputs, inputs]."""
        if self.form == "fp8":
            return Fp8.empty(*lead, outputs=outputs, inputs=inputs, dtype=dtype, device=device)
        has_zeros = self.form == "int4_zeros"
        return Int4.empty(*lead, outputs=outputs, inputs=inputs, has_zeros=has_zeros, dtype=dtype, device=device)

    def num_bytes(self, outputs: int, inputs: int) -> int:
        """Of a weight in its room."""
        layout = layout_of(self.form)
        zeros = outputs * -(-inputs // layout.block()) * layout.scale_bytes if self.form == "int4_zeros" else 0
        return layout.bytes_of(outputs, inputs) + zeros


@dataclass(frozen=True, slots=True)
class PackedSlot:
    """Where a tensor of the checkpoint goes as it is packed, or the share of it that this rank holds."""

    held: PackedWeight
    share: Share
    dim: int

    @property
    def shape(self) -> torch.Size:
        """Of the tensor in the checkpoint."""
        shape = [self.held.num_outputs, self.held.num_inputs]
        shape[self.dim] = self.share.whole
        return torch.Size(shape)

    def take(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Copies what is this rank's.

        Raises:
            CheckpointError: it is not what `plan` saw, or not finite.
        """
        assert isinstance(tensors, PackedTensors), "there is a Packing only for such"
        part = tensors.grouped(name, self.shape, self.share, self.dim, self.held.words.device)
        if not bool(part.scale_NG.to(self.held.dtype).isfinite().all()):
            raise CheckpointError(
                f"{name} has scales that are not finite in {self.held.dtype}: the file is damaged, or needs a wider "
                "dtype (--dtype)"
            )
        try:
            self.held.fill(part)
        except ValueError as error:
            raise CheckpointError(f"{name} cannot stay packed: {error}; use --weights unpacked") from error


def plan(
    config: TargetConfig,
    tensors: Mapping[str, Tensor],
    weights: Weights,
    *,
    group: Group,
    dtype: torch.dtype,
    device: torch.device | str,
    expert_prefix: str,
    products: Mapping[str, tuple[str, ...]],
) -> tuple[Packing | None, str | None]:
    """What stays packed, and a sentence about it; None if the checkpoint is not quantised.

    Args:
        config, tensors: of the checkpoint.
        weights: what the user wants.
        group: ranks that share it.
        dtype: of the model.
        device: where it will lie.
        expert_prefix: how names of experts begin behind `model.layers.N.`.
        products: of a layer, and the names that each is made of.

    Raises:
        ConfigError: `weights` is "packed", and they cannot be.
    """
    if not isinstance(tensors, PackedTensors):
        if weights == "packed":
            raise ConfigError('weights is "packed", but the checkpoint is not quantised: use "auto"')
        return None, None
    layers = _packed_layers(config, tensors, expert_prefix)
    kept = _packed_products(config, tensors, products, group)
    why = _why_not(config, tensors, weights, layers, group, dtype, torch.device(device))
    if why is None and not layers and not kept:
        why = "no product is packed as a whole, or ranks would cut its groups"
    if why is not None:
        if weights == "packed":
            raise ConfigError(f'weights is "packed", but {why}: use "auto" or "unpacked"')
        return None, f"{tensors.note} are unpacked to the model's dtype as they are loaded: {why}"
    experts = f"the experts of {count_of(len(layers), 'layer')} and " if layers else ""
    others = count_of(len(kept), "other product")
    told = f"{tensors.note}: {experts}{others} stay packed in memory; the rest is unpacked at load"
    assert tensors.form is not None, "`_why_not` comes first"
    return Packing(frozenset(layers), tensors.form, frozenset(kept)), told


def _packed_layers(config: TargetConfig, tensors: PackedTensors, expert_prefix: str) -> list[int]:
    """Layers all of whose experts are packed."""
    if config.mixture is None:
        return []
    wanted = 3 * config.mixture.num_experts
    counts: dict[int, int] = {}
    for name in tensors:
        parts = name.split(".", 3)
        if len(parts) == 4 and parts[2].isdigit() and parts[3].startswith(expert_prefix) and tensors.packs(name):
            counts[int(parts[2])] = counts.get(int(parts[2]), 0) + 1
    return [layer for layer, there in enumerate(config.mixture.layers) if there and counts.get(layer) == wanted]


def _packed_products(
    config: TargetConfig, tensors: PackedTensors, products: Mapping[str, tuple[str, ...]], group: Group
) -> list[tuple[int, str]]:
    """Those all of whose parts are packed, and of which no rank would hold a part of a group."""
    if tensors.group is None:
        return []
    value_dim = config.head_dim if config.latent is None else config.latent.value_dim
    inputs = {"attention.output": config.num_heads * value_dim, "mlp.down": config.intermediate_size}
    inputs["mlp.shared.down"] = 0 if config.mixture is None else config.mixture.shared_size
    cut = {path for path, size in inputs.items() if group.size > 1 and size // group.size % tensors.group}
    return [
        (layer, path)
        for layer in range(config.num_layers)
        for path, names in products.items()
        if path not in cut and all(tensors.packs(f"model.layers.{layer}.{name}.weight") for name in names)
    ]


def _why_not(
    config: TargetConfig,
    tensors: PackedTensors,
    weights: Weights,
    layers: list[int],
    group: Group,
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    if weights == "unpacked":
        return 'weights is "unpacked"'
    if device.type != "cuda":
        return f"there are kernels for packed weights on a GPU, not on a {device.type.upper()}"
    if dtype.itemsize != 2:
        return f"the kernels for packed weights compute in 16 bits, not in {dtype}"
    if tensors.form is None or tensors.group is None:
        return "there is no kernel for this layout"
    layout = layout_of(tensors.form)
    if why := layout.why_not(tensors.group, config.hidden_size):
        return why
    if not layers or config.mixture is None:
        return None
    width = config.mixture.intermediate_size
    size = even_share(group, width).size
    if size != width and size % tensors.group:
        return f"a rank's {size} of the experts' {width} inputs are no whole groups of {tensors.group}"
    return layout.why_not(tensors.group, size)
