"""Byte-level tokenizers with vocabularies that a test chooses: pieces may split characters."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, decoders, models

from outpace.models.text.stream import BYTE_OF
from outpace.models.text.tokenizer import Tokenizer
from outpace.models.text.tokenizer_parts import TokenizerParts

_CHARACTER = {byte: character for character, byte in BYTE_OF.items()}


def byte_tokenizer(pieces: Iterable[bytes], special: Iterable[str] = (), chat_template: str | None = None) -> Tokenizer:
    """Token i is the i-th piece; the special tokens come behind. It decodes, and cannot encode well."""
    names = ["".join(_CHARACTER[byte] for byte in piece) for piece in pieces]
    backend = tokenizers.Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return Tokenizer(TokenizerParts(backend=backend, chat_template=chat_template))
