"""The GGUF container: one bounded pass over its header, then tensors dequantised one at a time.

The header is walked here and not by `gguf.GGUFReader`, which believes every length it reads (an array that declares
2**60 elements keeps it appending until memory is gone) and needs two seconds for a vocabulary of 49k tokens; the
tests compare both on the same files. Types, block sizes and dequantisation are the `gguf` package's.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from outpace.errors import CheckpointError
from outpace.models.fields import Fields

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")

MAX_HEADER_BYTES = 128 << 20
"""The largest vocabularies of today, merges included, take 20 MiB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAY = 1 << 22
MAX_DIMS = 4
_MAX_NESTING = 4
_ROWS_AT_ONCE = 4096

_STRING, _ARRAY = 8, 9
_NUMBERS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "|b1"))) | {10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in PyTorch's order (GGUF stores it reversed); offset and size in bytes."""

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


class GgufFile:
    """A GGUF file: `metadata` (numbers, strings, lists of strings, NumPy arrays of numbers) and `tensors` by name.

    Raises:
        CheckpointError: not a GGUF file, cut short, of an unsupported version or tensor type, or declaring sizes
            that it cannot hold; checked before anything of such a size is allocated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{path} cannot be read as a GGUF file: {error or 'it is empty'}") from error
        header = _Header(self._bytes.data, path)
        num_tensors, num_keys = header.opening()
        self.metadata: dict[str, Any] = header.metadata(num_keys)
        self.tensors: dict[str, TensorInfo] = header.tensors(num_tensors, self._alignment())

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor as float32, in memory of its own.

        Raises:
            CheckpointError: a number in it is infinite or none.
        """
        info = self.tensors[name]
        rows = self._bytes[info.offset : info.offset + info.num_bytes].reshape(math.prod(info.shape[:-1]), -1)
        out = np.empty((len(rows), info.shape[-1]), np.float32)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            with np.errstate(all="ignore"):  # broken scales: said below, and not by a warning of NumPy's
                out[start : start + _ROWS_AT_ONCE] = dequantize(rows[start : start + _ROWS_AT_ONCE], info.type)
            if not np.isfinite(out[start : start + _ROWS_AT_ONCE]).all():
                raise CheckpointError(
                    f"{self.path}: tensor {name} holds numbers that are not finite; the file is damaged: fetch it again"
                )
        return out.reshape(info.shape)

    def fields(self, prefix: str) -> Fields:
        """The metadata whose keys begin with `prefix`, asked for without it: `context_length` of `llama.`."""
        return select(self.metadata, prefix, self.path)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise CheckpointError(f"{self.path}: general.alignment is {alignment!r}; it must be a power of two ≤ 65536")
        return alignment


def select(metadata: Mapping[str, Any], prefix: str, path: Path) -> Fields:
    """See `GgufFile.fields`."""
    values = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return Fields(values, f"{path}: {prefix}*")


class _Header:
    """Reads forward through the header and never past the file's end."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data, self._path, self._offset = data, path, 0

    def opening(self) -> tuple[int, int]:
        """Magic, version and the numbers of tensors and metadata keys."""
        if bytes(self._data[:4]) != b"GGUF":
            raise self._error("it does not begin with 'GGUF'; it is another kind of file or a broken download")
        self._offset = 4
        version = self._number("<I", "the version")
        if not version & 0xFFFF:
            raise self._error("it is big endian; only little-endian files are read: convert it again")
        if version not in (2, 3):
            raise self._error(f"it is GGUF version {version}; versions 2 and 3 are read: convert it again")
        num_tensors = self._count(MAX_TENSORS, "tensors")
        return num_tensors, self._count(MAX_KEYS, "metadata keys")

    def metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string("a metadata key")
            if key in metadata:
                raise self._error(f"the metadata key {key} comes twice")
            metadata[key] = self._value(self._number("<I", f"the type of {key}"), key, _MAX_NESTING)
        return metadata

    def tensors(self, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for _ in range(num_tensors):
            name = self._string("a tensor name")
            if name in tensors:
                raise self._error(f"the tensor {name} comes twice")
            tensors[name] = self._tensor(name, alignment)
        start = -(-self._offset // alignment) * alignment
        return {name: self._placed(name, info, start) for name, info in tensors.items()}

    def _tensor(self, name: str, alignment: int) -> TensorInfo:
        num_dims = self._number("<I", f"the number of dimensions of {name}")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._error(f"tensor {name} declares {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
        shape = tuple(self._number("<Q", f"the shape of {name}") for _ in range(num_dims))[::-1]
        kind = _tensor_type(self._number("<I", f"the type of {name}"))
        if kind is None or kind.name not in SUPPORTED_TYPES:
            shown = "unknown" if kind is None else kind.name
            raise self._error(f"tensor {name} is of type {shown}; supported are {', '.join(SUPPORTED_TYPES)}")
        offset = self._number("<Q", f"the offset of {name}")
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % block or offset % alignment:
            raise self._error(f"tensor {name}: shape {list(shape)} at {offset} does not fit {kind.name}'s blocks")
        return TensorInfo(shape, kind, offset, math.prod(shape) // block * block_bytes)

    def _placed(self, name: str, info: TensorInfo, start: int) -> TensorInfo:
        offset = start + info.offset
        if offset + info.num_bytes > len(self._data):
            raise self._error(
                f"tensor {name} of shape {list(info.shape)} ends at byte {offset + info.num_bytes}, the file at "
                f"{len(self._data)}; it is cut short or corrupt: download it again"
            )
        return TensorInfo(info.shape, info.type, offset, info.num_bytes)

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind in _NUMBERS:
            return self._numbers(kind, 1, key)[0].item()
        if kind == _ARRAY and depth:
            return self._array(key, depth)
        raise self._error(f"the metadata {key} is of unknown type {kind} or nested too deep")

    def _array(self, key: str, depth: int) -> Any:
        kind = self._number("<I", f"the element type of {key}")
        length = self._count(MAX_ARRAY, f"elements in {key}")
        if kind in _NUMBERS:
            return self._numbers(kind, length, key).copy()
        return [self._value(kind, key, depth - 1) for _ in range(length)]

    def _numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize, what), dtype)

    def _count(self, limit: int, what: str) -> int:
        count = self._number("<Q", f"the number of {what}")
        if count > limit:
            raise self._error(f"it declares {count} {what}; at most {limit} are read, so it is corrupt or hostile")
        return count

    def _number(self, form: str, what: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form), what))[0]
        return number

    def _string(self, what: str) -> str:
        raw = self._take(self._number("<Q", f"the length of {what}"), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8: {error}") from error

    def _take(self, num_bytes: int, what: str) -> memoryview:
        end = self._offset + num_bytes
        if end > min(len(self._data), MAX_HEADER_BYTES):
            raise self._error(
                f"the header ends within {what}, which needs {num_bytes} bytes at {self._offset} of {len(self._data)} "
                f"(at most {MAX_HEADER_BYTES} are header); it is cut short or corrupt: download it again"
            )
        taken, self._offset = self._data[self._offset : end], end
        return taken

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {message}")


def _tensor_type(number: int) -> GGMLQuantizationType | None:
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        return None
