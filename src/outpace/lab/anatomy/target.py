"""What a checkpoint is, from its headers alone: no weight is loaded."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from outpace.models.arch import TargetConfig
from outpace.models.registry import describe_target
from outpace.models.source import Source
from outpace.models.target import Target
from outpace.models.text.tokenizer import Tokenizer
from outpace.wording import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAnatomy:
    """One target. Sizes are in elements and bytes."""

    source: Source
    config: TargetConfig
    num_parameters: int
    bytes_on_disk: int
    tokenizer: dict[str, Any] | None
    shipped_drafter: str | None = None
    """Where the drafter lies that comes with this package for it."""
    notes: tuple[str, ...] = field(default=())

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        kinds = 2 if self.config.shared_value_dim is None else 1
        return kinds * self.config.num_layers * self.config.num_cached_heads * self.config.key_dim

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "kind": "target",
            "name": self.source.name,
            "format": self.source.kind,
            "path": str(self.source.path),
            "config": asdict(self.config),
            "num_parameters": self.num_parameters,
            "bytes_on_disk": self.bytes_on_disk,
            "kv_bytes_per_token": {
                "bfloat16": 2 * self.kv_elements_per_token,
                "float32": 4 * self.kv_elements_per_token,
            },
            "tokenizer": self.tokenizer,
            "shipped_drafter": self.shipped_drafter,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The same for people, one fact a line."""
        c = self.config
        kv = self.kv_elements_per_token
        windowed = sum(window is not None for window in c.windows)
        return [
            f"{self.source.name}: a target ({self.source.kind})",
            f"  architecture  {c.architecture}: {count_of(c.num_layers, 'layer')}, "
            f"hidden {c.hidden_size}, MLP {c.intermediate_size}",
            f"  attention     {count_of(c.num_heads, 'head')} of {c.head_dim}, {count_of(c.num_kv_heads, 'KV head')}"
            + (f", {count_of(windowed, 'layer')} with a sliding window" if windowed else ""),
            f"  positions     {c.max_positions:,}, rope {c.rope.kind}, theta {c.rope.theta:g}",
            f"  vocabulary    {c.vocab_size:,}, embeddings {'tied' if c.tie_embeddings else 'not tied'}",
            f"  size          {self.num_parameters / 1e6:,.1f} M parameters, "
            + (f"{self.bytes_on_disk / 1e6:,.0f} MB on disk" if self.bytes_on_disk else "no weights here"),
            f"  KV memory     {2 * kv / 1024:.1f} KiB a token in 16 bits, {4 * kv / 1024:.1f} KiB in float32",
            f"  tokenizer     {_tokenizer_line(self.tokenizer)}",
            *([f"  drafter       comes with it: {self.shipped_drafter}"] if self.shipped_drafter else []),
            *(f"  note          {note}" for note in self.notes),
        ]


def target_anatomy(source: Source) -> TargetAnatomy:
    """Reads a target's headers.

    Raises:
        CheckpointError: it cannot be read or is of a kind that is not served.
    """
    described = describe_target(source)
    if bytes_on_disk(source):
        described.open_tensors()  # says what is wrong with the files, if anything is
    return TargetAnatomy(
        source=source,
        config=described.config,
        num_parameters=count_parameters(described.config),
        bytes_on_disk=bytes_on_disk(source),
        tokenizer=None if described.tokenizer is None else _tokenizer_facts(described.tokenizer),
        notes=described.notes,
    )


def count_parameters(config: TargetConfig) -> int:
    """Elements of all weights; tied ones count once. On torch's meta device nothing is allocated."""
    model = Target(config, dtype=torch.float32, device="meta")
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


def bytes_on_disk(source: Source) -> int:
    """Size of the weight files that are here."""
    files = [source.path] if source.kind == "gguf" else sorted(source.path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def _tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.chat_template is not None,
    }


def _tokenizer_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "none: give prompts as token ids"
    template = "with a chat template" if facts["has_chat_template"] else "without a chat template"
    return f"{facts['vocab_size']:,} tokens, {template}"
