"""A large JSON object read piece by piece: Python's lock is held while a piece is read, and is free between two.

What long bodies are made of is a text, a list of token ids, lists of them, or a list of messages. Texts are cheap
whatever their length; the lists are cut where numbers are parted, and objects are taken field by field. Anything else
that is long is read in one go, and may therefore hold the fewer values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

PIECE = 64 << 10
"""Bytes that are read in one go, a fifth of a millisecond or less. Between two, whoever waits for Python's lock gets
it within the interpreter's switch interval, which `server/run.py` sets."""
LEVELS = 6
"""Objects and lists within each other that are taken apart: a part's text of a message is five levels deep."""
MAX_LISTS = 1 << 12
"""Lists of numbers in one list that are taken apart each by itself."""
MAX_MIXED = 1 << 17
"""Values of a list that is read in one go, however long."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()


class TooManyValues(Exception):
    """A list that cannot be read in pieces holds `found` values, and `MAX_MIXED` are the most."""

    def __init__(self, found: int) -> None:
        super().__init__(f"{found} values stand in a list that holds more than numbers")
        self.found = found


def read(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        msgspec.DecodeError: it is no JSON.
        RecursionError: it is nested too deep.
        TooManyValues: it holds a long list of a kind that is not taken apart.
    """
    return _read(body, LEVELS) if body.lstrip()[:1] == b"{" else _VALUE.decode(body)


def _read(value: bytes | msgspec.Raw, levels: int) -> Any:
    """Of a value that is well-formed, if it is not the whole."""
    view = memoryview(value)
    if view.nbytes <= PIECE or view[0] == ord('"'):
        return _VALUE.decode(value)
    text = bytes(value)
    first = text.lstrip()[:1]
    if first == b"{" and levels:
        return {name: _read(value, levels - 1) for name, value in _FIELDS.decode(text).items()}
    if first == b"[" and b'"' not in text and b"{" not in text and (lists := _number_lists(text)) is not None:
        return lists
    check_mixed(text)
    return _items(text, levels) if first == b"[" and levels else _VALUE.decode(text)


def _number_lists(text: bytes) -> list[Any] | None:
    """A list of numbers, or a list of such lists; None if it is neither."""
    inner = text.strip()[1:-1]
    if b"[" not in inner:
        return _numbers(inner)
    *parts, rest = inner.split(b"]", MAX_LISTS)
    heads = [part.partition(b"[") for part in parts]
    if rest.strip() or any(before.strip() not in (b"", b",") or b"[" in numbers for before, _, numbers in heads):
        return None
    return [_numbers(numbers) for _, _, numbers in heads]


def _numbers(inner: bytes) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at >= 0:
        end = inner.find(b",", at + PIECE)
        found += _VALUE.decode(b"[" + (inner[at:] if end < 0 else inner[at:end]) + b"]")
        at = end + 1 if end >= 0 else -1
    return found


def _items(text: bytes, levels: int) -> list[Any]:
    """Short ones together, long ones each taken apart."""
    found: list[Any] = []
    short: list[msgspec.Raw] = []
    size = 0
    for item in _ITEMS.decode(text):
        length = memoryview(item).nbytes
        if length <= PIECE:
            short.append(item)
        if length > PIECE or (size := size + length) > PIECE:
            found += _VALUE.decode(b"[" + b",".join(short) + b"]")
            short, size = [], 0
        if length > PIECE:
            found.append(_read(item, levels - 1))
    return [*found, *_VALUE.decode(b"[" + b",".join(short) + b"]")]


def check_mixed(text: bytes) -> None:
    """Raises TooManyValues if it holds too many values to be read in one go."""
    if (found := sum(part.count(b",") for part in outside_texts(text))) > MAX_MIXED:
        raise TooManyValues(found)


def outside_texts(body: bytes) -> Iterator[bytes]:
    """What stands between texts, also of what is no JSON. Within a text, a quote is escaped."""
    within, rest = False, b""
    for at in range(0, len(body), PIECE):
        part = rest + body[at : at + PIECE]
        rest = b"\\" * ((len(part) - len(part.rstrip(b"\\"))) % 2)  # what it escapes is in the next part
        parts = part[: len(part) - len(rest)].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield from parts[within::2]
        within ^= len(parts) % 2 == 0
