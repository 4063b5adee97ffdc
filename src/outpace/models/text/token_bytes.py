"""What each token adds to a text, as bytes: a grammar admits tokens by them.

The decoder of a vocabulary says how its tokens are spelled. A byte-level one spells bytes; SentencePiece's writes a
space as U+2581 and bytes that no piece covers as `<0x0A>`. Where such a decoder strips the space that a text begins
with, a first token's space is among its bytes all the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import tokenizers

from outpace.errors import RequestError
from outpace.models.text.stream import BYTE_OF, is_byte

_PIECES = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """What the backend's decoder does, in order, as tokenizer.json writes it."""
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def token_bytes(backend: tokenizers.Tokenizer, special: Collection[int]) -> list[bytes | None]:
    """By id; None for special tokens and for ids without a token.

    Raises:
        RequestError: tokens of this decoder have no bytes of their own.
    """
    steps = decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if kinds != {"ByteLevel"} and not (steps and kinds <= _PIECES):
        raise RequestError(
            f"grammar: the model's tokenizer decodes by {', '.join(sorted(kinds)) or 'joining with spaces'}, so its "
            "tokens have no bytes of their own: leave the grammar out"
        )
    replaced = [pair for step in steps if (pair := _replaced(step)) is not None]
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        if index not in special:
            found[index] = _byte_level(token) if kinds == {"ByteLevel"} else _piece(token, replaced)
    return found


def bytes_of(backend: tokenizers.Tokenizer, index: int, *, byte_level: bool) -> bytes | None:
    """What one token spells byte by byte, which may be a part of a character; None for any other token."""
    token = backend.id_to_token(index)
    if token is None:
        return None
    if byte_level:
        return _byte_level(token)
    return bytes([int(token[3:5], 16)]) if is_byte(token) else None


def _replaced(step: dict[str, Any]) -> tuple[str, str] | None:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return step["pattern"]["String"], step["content"]
    return None


def _byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:  # an added token, spelled as it is
        return token.encode()


def _piece(token: str, replaced: list[tuple[str, str]]) -> bytes:
    if is_byte(token):
        return bytes([int(token[3:5], 16)])
    for old, new in replaced:
        token = token.replace(old, new)
    return token.encode()
