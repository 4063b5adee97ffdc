"""Checkpoints that wrap a language model in one that also sees pictures: the language model alone is served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from outpace.errors import CheckpointError
from outpace.models.fields import read_json
from outpace.models.hf.quantised import Unpacked, read_scheme
from outpace.models.hf.weights import read_safetensors

PREFIX = "language_model."
OTHER_PARTS = ("vision_tower.", "mm_projector.")
WRAPPERS = {"kimi_k25": "it also sees pictures; the language model alone is served"}
"""Outer model types, and what is said of them."""


def unwrapped(config: dict[str, Any], origin: str) -> tuple[dict[str, Any], str | None]:
    """The language model's own config, and what is said if it was wrapped.

    Raises:
        CheckpointError: a wrapper without a language model in it.
    """
    note = WRAPPERS.get(str(config.get("model_type")))
    if note is None:
        return config, None
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        raise CheckpointError(f"{origin}: text_config is {inner!r:.60}; it must describe the language model")
    return inner, f"{config['model_type']}: {note}"


def read_tensors(directory: Path) -> Mapping[str, Tensor]:
    """The language model's tensors of a checkpoint directory, as they are without a wrapper and not quantised.

    Raises:
        CheckpointError: the files cannot be read.
    """
    tensors: Mapping[str, Tensor] = read_safetensors(directory)
    path = directory / "config.json"
    config = read_json(path)
    inner, wrapper = unwrapped(config, str(path))
    if wrapper is not None:
        tensors = _Inner(tensors)
    scheme = read_scheme(inner, str(path))
    return tensors if scheme is None else Unpacked(tensors, scheme)


class _Inner(Mapping[str, Tensor]):
    """Names without the wrapper's prefix; the other parts' are left out, and what is neither stays to be refused."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._names = {name.removeprefix(PREFIX): name for name in tensors if not name.startswith(OTHER_PARTS)}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
