"""Conversations as token ids: what the target was fed, what it wrote, and which tokens are which.

Answers are kept as ids, never as text: re-encoding text can change them, and the drafter must learn exactly what the
target emits. Files are safetensors with three arrays, so that nothing is executed when they are read:
`tokens` (uint16, or uint32 for vocabularies over 65536) one conversation after the other, `offsets` int64 [N + 1],
`spans` int64 [M, 3] of (conversation, first assistant token, one past the last).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from outpace.errors import ConfigError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Token ids and the half-open spans of them that the target wrote."""

    tokens: Ints
    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        assert all(0 <= first < end <= len(self.tokens) for first, end in self.spans), self.spans

    @property
    def num_assistant(self) -> int:
        return sum(end - first for first, end in self.spans)

    def assistant(self) -> NDArray[np.bool_]:
        """True where the target wrote the token."""
        mask = np.zeros(len(self.tokens), dtype=np.bool_)
        for first, end in self.spans:
            mask[first:end] = True
        return mask


def save_conversations(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes one file, completely or not at all."""
    tokens = np.concatenate([c.tokens for c in conversations]) if conversations else np.zeros(0, np.int64)
    offsets = np.cumsum([0, *(len(c.tokens) for c in conversations)], dtype=np.int64)
    spans = [(row, *span) for row, c in enumerate(conversations) for span in c.spans]
    kind = np.uint16 if tokens.size == 0 or int(tokens.max()) < 1 << 16 else np.uint32
    partial = path.with_name(path.name + ".partial")
    save_file(
        {
            "tokens": tokens.astype(kind),
            "offsets": offsets,
            "spans": np.array(spans, dtype=np.int64).reshape(-1, 3),
        },
        partial,
    )
    partial.replace(path)


def load_conversations(paths: Iterable[Path]) -> list[Conversation]:
    """Reads files in the order given.

    Raises:
        ConfigError: a file is missing or not one of ours.
    """
    return [conversation for path in paths for conversation in _read(path)]


def _read(path: Path) -> list[Conversation]:
    try:
        arrays = load_file(path)
        tokens, offsets, spans = (arrays[name].astype(np.int64) for name in ("tokens", "offsets", "spans"))
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(
            f"{path} cannot be read as answers ({error}); give a file that `outpace train` wrote"
        ) from error
    by_row: list[list[tuple[int, int]]] = [[] for _ in range(len(offsets) - 1)]
    for row, first, end in spans.tolist():
        by_row[row].append((first, end))
    return [
        Conversation(tokens=tokens[offsets[row] : offsets[row + 1]], spans=tuple(found))
        for row, found in enumerate(by_row)
    ]
