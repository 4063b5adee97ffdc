"""Quantised checkpoints: which scheme a config.json names, and its tensors as float ones, unpacked when asked for.

Schemes and their layouts, W being [N, K]:
- compressed-tensors "pack-quantized", symmetric INT4 in groups along K (what Kimi-K2 ships);
- FP8 e4m3 with one scale a block of N and K (what DeepSeek-V3 ships);
- AWQ "gemm" and GPTQ, INT4 in groups along K, with zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outpace.errors import CheckpointError
from outpace.kernels.packed import Grouped
from outpace.models.fields import Fields
from outpace.models.hf import unpack
from outpace.models.packed import Format, PackedTensors
from outpace.models.shares import Share

MAX_GROUP = 1 << 20

_HARMLESS = frozenset(
    {
        "backend",
        "batch_size",
        "block_name_to_quantize",
        "cache_block_outputs",
        "damp_auto_increment",
        "damp_percent",
        "dataset",
        "disable_exllama",
        "do_fuse",
        "exllama_config",
        "fuse_max_seq_len",
        "global_compression_ratio",
        "ignore",
        "ignored_layers",
        "lm_head",
        "max_input_length",
        "meta",
        "model_file_base_name",
        "model_name_or_path",
        "model_seqlen",
        "module_name_preceding_first_block",
        "modules_in_block_to_quantize",
        "modules_to_fuse",
        "modules_to_not_convert",
        "observer",
        "observer_kwargs",
        "pad_token_id",
        "quantizer",
        "scale_dtype",
        "scale_fmt",
        "static_groups",
        "sym",
        "targets",
        "tokenizer",
        "true_sequential",
        "use_cuda_fp16",
        "use_exllama",
        "version",
        "zp_dtype",
    }
)
"""Fields about how numbers were found, or which weights are packed (their tensors say so); not worth a note."""

Parts = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are packed: the tensors that stand for one weight, and what makes it of them."""

    main: str
    """Suffix of the tensor that is always there."""
    others: tuple[str, ...]
    """Suffixes of those beside it."""
    make: Callable[[Parts], Tensor]
    """The float weight [N, K] of the parts, by suffix. Raises ValueError: shapes do not fit."""
    note: str
    part: Callable[[Parts, unpack.Window], Grouped] | None = None
    """A part of it as it is packed; None if a GPU has no layout for it. Raises ValueError."""
    group: int | None = None
    """Inputs that share a scale, where there is a `part`."""
    form: Format | None = None
    """How it lies on a GPU, where there is a `part`."""

    def saying(self, fields: Fields, harmless: frozenset[str]) -> Scheme:
        """This scheme, its note naming fields that nobody read."""
        unread = [name for name in fields.unread() if name not in harmless]
        return replace(self, note=f"{self.note}; not used: {', '.join(unread)}") if unread else self


def read_scheme(config: Mapping[str, Any], origin: str) -> Scheme | None:
    """The scheme that a config.json names; None if the weights are not quantised.

    Raises:
        CheckpointError: the scheme, or a setting of it, is not served.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise CheckpointError(f"{origin}: quantization_config is {given!r:.60}; it must be an object")
    fields = Fields(given, f"{origin}, quantization_config")
    method = fields.get("quant_method")
    readers = {"compressed-tensors": _compressed_tensors, "fp8": _fp8, "awq": _awq, "gptq": _gptq}
    if not isinstance(method, str) or method not in readers:
        raise CheckpointError(
            f"{fields.origin}: quant_method is {method!r}; served are {', '.join(readers)}: use another checkpoint, or "
            "the one before it was quantised"
        )
    return readers[method](fields).saying(fields, _HARMLESS)


def _must_be(fields: Fields, **allowed: tuple[object, ...]) -> None:
    for name, values in allowed.items():
        if (value := fields.get(name)) not in values:
            served = " or ".join(repr(value) for value in values if value is not None) or "none"
            raise CheckpointError(f"{fields.origin}: {name} is {value!r:.80}; served is {served}")


def _compressed_tensors(fields: Fields) -> Scheme:
    _must_be(fields, format=("pack-quantized",), kv_cache_scheme=(None,), sparsity_config=(None, {}))
    _must_be(fields, quantization_status=(None, "compressed"), transform_config=(None, {}))
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1 or not isinstance(next(iter(groups.values())), dict):
        raise CheckpointError(f"{fields.origin}: config_groups is {groups!r:.80}; served is one group of weights")
    name, group = next(iter(groups.items()))
    inner = Fields(group, f"{fields.origin}, {name}")
    _must_be(inner, input_activations=(None,), output_activations=(None,), format=(None, "pack-quantized"))
    given = inner.get("weights")
    if not isinstance(given, dict):
        raise CheckpointError(f"{inner.origin}: weights is {given!r:.60}; it must say how they are packed")
    weights = Fields(given, f"{inner.origin}, weights")
    _must_be(weights, num_bits=(4,), type=("int",), strategy=("group",), symmetric=(True,))
    _must_be(weights, actorder=(None, False), dynamic=(None, False), block_structure=(None,))
    size = weights.integer("group_size", maximum=MAX_GROUP)
    scheme = Scheme(
        "weight_packed",
        ("weight_scale", "weight_shape"),
        lambda parts: unpack.int4_groups(parts["weight_packed"], parts["weight_scale"], parts["weight_shape"], size),
        f"INT4 weights in groups of {size} (compressed-tensors)",
        part=lambda parts, window: unpack.int4_groups_part(
            parts["weight_packed"], parts["weight_scale"], parts["weight_shape"], size, window
        ),
        group=size,
        form="int4",
    )
    return scheme.saying(inner, _HARMLESS).saying(weights, _HARMLESS)


def _fp8(fields: Fields) -> Scheme:
    _must_be(fields, fmt=(None, "e4m3"), activation_scheme=(None, "dynamic"))
    block = fields.get("weight_block_size")
    if not (isinstance(block, list) and len(block) == 2 and all(type(b) is int and 0 < b <= MAX_GROUP for b in block)):
        raise CheckpointError(
            f"{fields.origin}: weight_block_size is {block!r:.60}; it must be two sizes, as [128, 128]"
        )
    rows, columns = block
    return Scheme(
        "weight_scale_inv",
        ("weight",),
        lambda parts: unpack.fp8_blocks(parts["weight"], parts["weight_scale_inv"], rows, columns),
        f"FP8 weights in blocks of {rows} x {columns}",
        part=lambda parts, window: unpack.fp8_blocks_part(
            parts["weight"], parts["weight_scale_inv"], rows, columns, window
        ),
        group=columns,
        form="fp8",
    )


def _awq(fields: Fields) -> Scheme:
    _must_be(fields, bits=(4,), version=(None, "gemm", "GEMM"), zero_point=(True,))
    size = fields.integer("group_size", maximum=MAX_GROUP)
    return Scheme(
        "qweight",
        ("qzeros", "scales"),
        lambda parts: unpack.awq(parts["qweight"], parts["qzeros"], parts["scales"], size),
        f"INT4 weights in groups of {size} (AWQ)",
        part=lambda parts, window: unpack.awq_part(parts["qweight"], parts["qzeros"], parts["scales"], size, window),
        group=size,
        form="int4_zeros",
    )


def _gptq(fields: Fields) -> Scheme:
    _must_be(fields, bits=(4,), checkpoint_format=(None, "gptq"), format=(None, "gptq"), pack_dtype=(None, "int32"))
    _must_be(fields, is_marlin_format=(None, False), desc_act=(None, False, True))
    scheme = Scheme(
        "qweight",
        ("qzeros", "scales", "g_idx"),
        lambda parts: unpack.gptq(parts["qweight"], parts["qzeros"], parts["scales"], parts["g_idx"]),
        "INT4 weights (GPTQ)",
    )
    size = fields.integer("group_size", -1, minimum=-1, maximum=MAX_GROUP)
    if fields.get("desc_act") or size < 1:
        return scheme  # inputs in the order of activations, or rows that are one group
    return replace(
        scheme,
        part=lambda parts, window: unpack.gptq_part(
            parts["qweight"], parts["qzeros"], parts["scales"], parts["g_idx"], size, window
        ),
        group=size,
        form="int4_zeros",
    )


class Unpacked(PackedTensors):
    """A checkpoint's tensors under the names that they have when it is not quantised.

    Raises:
        CheckpointError: when a weight is asked for of which a part is missing or does not fit.
    """

    def __init__(self, tensors: Mapping[str, Tensor], scheme: Scheme) -> None:
        self._tensors, self._scheme = tensors, scheme
        self.group, self.form, self.note = scheme.group, scheme.form, scheme.note
        ending = f".{scheme.main}"
        bases = {name.removesuffix(ending) for name in tensors if name.endswith(ending)}
        parts = {f"{base}.{suffix}" for base in bases for suffix in scheme.others}
        self._bases = {f"{base}.weight": base for base in bases}
        if twice := sorted(name for name in self._bases if name in tensors and name not in parts):
            raise CheckpointError(f"the checkpoint holds {twice[0]} beside the same weight packed; one must go")
        plain = [name for name in tensors if name not in parts and not name.endswith(ending)]
        self._names = [*plain, *(f"{name.removesuffix(ending)}.weight" for name in tensors if name.endswith(ending))]

    def __getitem__(self, name: str) -> Tensor:
        if not self.packs(name):
            return self._tensors[name]
        parts = self._parts(name)
        try:
            return self._scheme.make(parts)
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(f"{name} cannot be unpacked: {error}") from error

    def packs(self, name: str) -> bool:
        return name in self._bases

    def grouped(self, name: str, shape: torch.Size, share: Share, dim: int, device: torch.device) -> Grouped:
        parts = self._parts(name)
        assert self._scheme.part is not None, "there is a Packing only for such"
        ranges = [slice(0, size) for size in shape]
        ranges[dim] = slice(share.start, share.start + share.size)
        try:
            return self._scheme.part(parts, unpack.Window(ranges[0], ranges[1], tuple(shape), device))
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(f"{name} cannot stay packed: {error}") from error

    def _parts(self, name: str) -> Parts:
        base, suffixes = self._bases[name], (self._scheme.main, *self._scheme.others)
        if absent := [suffix for suffix in suffixes if f"{base}.{suffix}" not in self._tensors]:
            raise CheckpointError(f"the checkpoint lacks {base}.{absent[0]}, without which {name} cannot be unpacked")
        return {suffix: self._tensors[f"{base}.{suffix}"] for suffix in suffixes}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
