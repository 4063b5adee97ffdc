"""A tiny target with a tokenizer: single bytes, and pieces of several that a grammar must see through."""

from __future__ import annotations

from dataclasses import replace

from engine.tiny import tiny_target
from models.byte_pieces import byte_tokenizer
from outpace.models.registry import LoadedTarget

_BYTES = [bytes([byte]) for byte in b'{}[]":,.-+0123456789abcdeflnrstuxy \n\\']
_WORDS = [b'{"', b'":', b"true", b"ab", b"cab", b"12", b'",', b"\xc3", b"\xa9", b"\xff", b"}}", b"]}"]
PIECES = _BYTES + _WORDS
END, SPECIAL = len(PIECES), len(PIECES) + 1
TOKENIZER = byte_tokenizer(PIECES, special=["<end>", "<call>"])
VOCAB = 61
"""More than the tokenizer has: the last ids are nobody's."""
assert len(PIECES) + 2 <= VOCAB - 2


def worded_target(seed: int = 0, **changes: object) -> LoadedTarget:
    """Random weights; token `END` ends an answer."""
    return replace(tiny_target(seed=seed, **({"eos_token_ids": (END,)} | changes)), tokenizer=TOKENIZER)


def ids(text: bytes) -> list[int]:
    """A text, byte by byte."""
    return [PIECES.index(bytes([byte])) for byte in text]
