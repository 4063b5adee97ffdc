"""The tensors of a checkpoint directory, lazily: one file or shards with an index, safetensors only.

A file is mapped, not read, and one shard is open at a time, so that loading never holds the model twice. Format:
https://github.com/huggingface/safetensors (its index file is transformers' `model.safetensors.index.json`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from outpace.errors import CheckpointError
from outpace.models.fields import check_file, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Shards(Mapping[str, Tensor]):
    """Tensor name → tensor on the CPU, in the type it is stored in, fetched when it is asked for.

    Iteration goes file by file. Not for several threads at once.
    """

    def __init__(self, file_of: dict[str, Path]) -> None:
        self._file_of = file_of
        self._opened: tuple[Path, Any] | None = None

    def __getitem__(self, name: str) -> Tensor:
        path = self._file_of[name]
        try:
            tensor: Tensor = self._open(path).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from error
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _open(self, path: Path) -> Any:
        if self._opened is None or self._opened[0] != path:
            self._opened = (path, safe_open(path, framework="pt"))
        return self._opened[1]


def read_safetensors(directory: Path) -> Shards:
    """The tensors of a directory; only headers are read now, and all of them are.

    Raises:
        CheckpointError: there are no safetensors, the index names a shard that is missing or does not hold just what
            it says, or a file is not whole.
    """
    index = directory / INDEX
    if not (directory / SINGLE).exists() and index.exists():
        return Shards(_indexed(index))
    path = _only_file(directory)
    return Shards(dict.fromkeys(_names(path), path))


def _only_file(directory: Path) -> Path:
    if (directory / SINGLE).exists():
        return directory / SINGLE
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise CheckpointError(
            f"{directory} holds {len(files)} safetensors files and no {INDEX}; fetch the index, or keep one file"
        )
    raise CheckpointError(f"{directory} holds no safetensors file; {_remedy(directory)}")


def _remedy(directory: Path) -> str:
    if next(directory.glob("*.bin"), None) is None:
        return "fetch the checkpoint's model.safetensors, or give a directory or a .gguf file that holds weights"
    return (
        "its .bin files are pickles, which can run code when they are read, and are refused: rewrite them with "
        "transformers, AutoModelForCausalLM.from_pretrained(…).save_pretrained(…), which writes safetensors"
    )


def _indexed(index: Path) -> dict[str, Path]:
    """The index's map, checked against the shards' own headers; names come shard by shard."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch the checkpoint again")
    names_of: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        names_of.setdefault(str(shard), []).append(name)
    there = {path.name for path in index.parent.iterdir()}
    for shard in sorted(names_of):
        if Path(shard).name != shard or shard not in there:
            raise CheckpointError(f"{index.name} names {shard!r:.200}, which is not in {index.parent}; fetch that file")
    file_of: dict[str, Path] = {}
    for shard, names in sorted(names_of.items()):
        path = index.parent / shard
        held = set(_names(path))
        if absent := sorted(set(names) - held):
            raise CheckpointError(f"{path} lacks {absent[0]}, which {index.name} says it holds; fetch both files again")
        if extra := sorted(held - set(names)):
            raise CheckpointError(
                f"{path} holds {extra[0]}, which {index.name} says is in {weight_map.get(extra[0], 'no shard')}; it "
                "would be ignored: fetch both files again"
            )
        file_of |= dict.fromkeys(names, path)
    return file_of


def _names(path: Path) -> list[str]:
    try:
        size = check_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch it again") from error
    try:
        with safe_open(path, framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        message = f"{path} ({size} bytes) is not a whole safetensors file ({error}); fetch it again"
        raise CheckpointError(message) from error
