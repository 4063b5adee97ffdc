"""What a drafter is and how it would be joined to its target, without loading weights.

A load decides the same, by the same function, but for one thing that takes weights: a drafter's embedding that equals
the target's is shared. Here it is said that this was not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outpace.errors import CheckpointError, DrafterError
from outpace.models.arch import TargetConfig
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import DRAFTER_FILES, read_tensors
from outpace.models.drafters.dialects import resolve
from outpace.models.fields import read_json
from outpace.models.source import Source, locate
from outpace.models.target import Target
from outpace.models.wiring import DrafterWiring
from outpace.wording import count_of

_TELLING_FIELDS = ("draft_vocab_size", "eagle_config", "speculators_model_type", "eagle_aux_hidden_state_layer_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterAnatomy:
    """One drafter beside one target. Sizes are in elements and bytes."""

    name: str
    target: str
    path: Path
    wiring: DrafterWiring
    num_parameters: int
    """Its own; what it borrows from the target is not counted."""
    bytes_on_disk: int

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of one token in its one layer."""
        num_heads = self.wiring.num_kv_heads if self.wiring.shape.latent is None else 1
        return num_heads * self.wiring.kv_elements_per_head

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "kind": "drafter",
            "name": self.name,
            "target": self.target,
            "path": str(self.path),
            "wiring": self.wiring.describe(),
            "num_parameters": self.num_parameters,
            "bytes_on_disk": self.bytes_on_disk,
            "kv_bytes_per_token": {
                "bfloat16": 2 * self.kv_elements_per_token,
                "float32": 4 * self.kv_elements_per_token,
            },
        }

    def lines(self) -> list[str]:
        """The same for people, one fact a line."""
        shape = self.wiring.shape
        return [
            f"{self.name}: an EAGLE-3 drafter, for {self.target}",
            f"  layer         hidden {shape.hidden_size}, MLP {shape.intermediate_size}, "
            f"{count_of(shape.num_heads, 'head')} of {shape.head_dim}, {count_of(shape.num_kv_heads, 'KV head')}",
            f"  size          {self.num_parameters / 1e6:,.1f} M parameters of its own, "
            f"{self.bytes_on_disk / 1e6:,.0f} MB on disk",
            f"  KV memory     {2 * self.kv_elements_per_token / 1024:.2f} KiB a token in 16 bits",
            *(f"  decided       {sentence}" for sentence in self.wiring.sentences()),
        ]


def is_drafter(source: Source) -> bool:
    """Whether a directory's config.json has what only drafters have."""
    if source.kind != "directory" or not (source.path / "config.json").is_file():
        return False
    config = read_json(source.path / "config.json")
    architectures = str(config.get("architectures") or "").lower()
    return "eagle" in architectures or any(config.get(name) is not None for name in _TELLING_FIELDS)


def drafter_anatomy(
    name: str, target_name: str, target: TargetConfig, aux_boundaries: Sequence[int] | None = None
) -> DrafterAnatomy:
    """Decides how a drafter is read, from shapes and the two small vocabulary maps.

    Raises:
        DrafterError: it cannot be read, or contradicts itself or the target.
    """
    found = locate(name, DRAFTER_FILES)
    if found.kind != "directory":
        raise DrafterError(f"drafter {name} is a GGUF file; drafters are read from a directory of safetensors")
    try:
        config = read_json(found.path / "config.json")
        resolved = resolve(config, read_tensors(found.path), target, aux_boundaries=aux_boundaries)
        wiring = _with_doubt(resolved.wiring, target)
    except CheckpointError as error:
        raise DrafterError(f"drafter {name}: {error}") from error
    return DrafterAnatomy(
        name=name,
        target=target_name,
        path=found.path,
        wiring=wiring,
        num_parameters=_count_parameters(wiring, target, resolved.target_ids_V),
        bytes_on_disk=sum(f.stat().st_size for f in found.path.iterdir() if f.suffix in (".safetensors", ".bin")),
    )


def _with_doubt(wiring: DrafterWiring, target: TargetConfig) -> DrafterWiring:
    """An embedding of the target's width may be a copy of the target's, which `load_drafter` would share."""
    if wiring.embedding != "own" or wiring.hidden_size != target.hidden_size:
        return wiring
    return replace(
        wiring,
        embedding_source=f"{wiring.embedding_source}; not compared with the target's, which a load shares if equal",
    )


def _count_parameters(wiring: DrafterWiring, target: TargetConfig, target_ids_V: torch.Tensor) -> int:
    """On torch's meta device, where nothing is allocated."""
    drafter = Drafter(wiring, Target(target, device="meta"), target_ids_V, device="meta")
    return sum(parameter.numel() for parameter in drafter.parameters())
