"""Decoding that emits text token by token and is equal, in the end, to decoding everything at once.

Byte-level vocabularies spell bytes, so their tokens go through an incremental UTF-8 decoder. Other vocabularies are
decoded through the backend in a short window: the tokens emitted last, so that the spaces between pieces come out
right, and the new ones. Byte-fallback tokens are held back until their run ends, because the backend decides about a
run as a whole: one broken byte in it makes all of it U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable
from typing import Protocol

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

REPLACEMENT = "\ufffd"


class TextStream(Protocol):
    """See `tokenizer.IncrementalDecoder`, which is what others use."""

    def push(self, ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class ByteStream:
    """For vocabularies whose only decoder is byte-level. `skipped`: ids that give no text."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Collection[int]) -> None:
        self._backend, self._skipped = backend, skipped
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._text.decode(b"".join(self._bytes(index) for index in ids))

    def finish(self) -> str:
        return self._text.decode(b"", final=True)

    def _bytes(self, index: int) -> bytes:
        token = None if index in self._skipped else self._backend.id_to_token(index)
        if token is None:
            return b""
        try:
            return bytes(BYTE_OF[character] for character in token)
        except KeyError:  # an added token, spelled as it is
            return str(token).encode()


class WindowStream:
    """For every other decoder. `_ids[: _num_emitted]` is context, the rest is not emitted yet."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Collection[int]) -> None:
        self._backend, self._skipped = backend, skipped
        self._has_byte_tokens = backend.token_to_id("<0x00>") is not None
        self._ids: list[int] = []
        self._num_emitted = 0

    def push(self, ids: Iterable[int]) -> str:
        pieces: list[str] = []
        for index in ids:
            token = None if index in self._skipped else self._backend.id_to_token(index)
            if token is None:
                continue
            self._ids.append(index)
            if not (self._has_byte_tokens and is_byte(token)):
                pieces.append(self._emit(final=False))
        return "".join(pieces)

    def finish(self) -> str:
        return self._emit(final=True)

    def _emit(self, final: bool) -> str:
        known = self._decode(self._ids[: self._num_emitted])
        text = self._decode(self._ids)
        if not final and (len(text) <= len(known) or self._is_cut(text)):
            return ""
        self._ids = self._ids[self._num_emitted :]
        self._num_emitted = len(self._ids)
        return text[len(known) :]

    def _is_cut(self, text: str) -> bool:
        """Whether a character may be incomplete at the end; with byte tokens their run ended, so it is not."""
        return not self._has_byte_tokens and text.endswith(REPLACEMENT)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def is_byte(token: str) -> bool:
    """Whether a token spells a byte: `<0x0A>`."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _byte_spelling() -> dict[str, int]:
    """Which character stands for which byte in byte-level vocabularies: GPT-2's table, as the backend applies it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_spelling()
"""What each character of a byte-level token stands for."""
assert set(BYTE_OF) == set(ByteLevel.alphabet())
