"""Log-probabilities as clients see them: tokens spelled out, and each written as JSON at once, part by part.

An answer may tell millions of them, and to write those at its end would take seconds in which nobody else is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from outpace.types import TokenLogprobs

LOWEST = -9999.0
"""OpenAI's word for a log-probability of minus infinity, which JSON does not have."""


class Spelling(NamedTuple):
    """One token of the vocabulary."""

    text: str
    """U+FFFD for a part of a character."""
    bytes: bytes | None
    """Of which clients put characters together; None where they are not known."""


Spell = Callable[[int], Spelling]


class Entry(NamedTuple):
    """One token."""

    token: str
    num_characters: int
    """Of the token's text."""
    logprob: float | None
    told: msgspec.Raw
    """In chats all of it; in a column of completions the likeliest tokens."""


def entries(
    spell: Spell, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], *, columnar: bool = False
) -> list[Entry]:
    """One entry a token; None, before the first token of a prompt, has no log-probability."""
    entry = _of_column if columnar else _of_chat
    return [entry(spell, token, found) for token, found in zip(token_ids, logprobs, strict=True)]


def _of_chat(spell: Spell, token: int, found: TokenLogprobs | None) -> Entry:
    own = _spelled(spell(token), None if found is None else found.logprob)
    top = [] if found is None else [_spelled(spell(other), logprob) for other, logprob in found.top]
    told = msgspec.Raw(msgspec.json.encode({**own, "top_logprobs": top}))
    return Entry(own["token"], len(own["token"]), own["logprob"], told)


def _of_column(spell: Spell, token: int, found: TokenLogprobs | None) -> Entry:
    """With the likeliest tokens and the token itself."""
    spelling = spell(token)
    name = _name(spelling)
    if found is None:
        return Entry(name, len(spelling.text), None, msgspec.Raw(b"null"))
    logprob = max(LOWEST, found.logprob)
    top = {_name(spell(other)): max(LOWEST, value) for other, value in found.top} | {name: logprob}
    return Entry(name, len(spelling.text), logprob, msgspec.Raw(msgspec.json.encode(top)))


def _name(spelling: Spelling) -> str:
    """Of a token in a column: all parts of characters would have the same text, so theirs are named as OpenAI does."""
    if spelling.bytes is None or spelling.bytes == spelling.text.encode():
        return spelling.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling.bytes)


def _spelled(spelling: Spelling, logprob: float | None) -> dict[str, Any]:
    told = None if spelling.bytes is None else list(spelling.bytes)
    return {"token": spelling.text, "logprob": None if logprob is None else max(LOWEST, logprob), "bytes": told}


def columns(listed: Sequence[Entry], offset: int) -> dict[str, list[Any]]:
    """Entries as completions have them: by column.

    Args:
        listed: the entries.
        offset: characters of all tokens before them.
    """
    offsets = []
    for entry in listed:
        offsets.append(offset)
        offset += entry.num_characters
    return {
        "tokens": [entry.token for entry in listed],
        "token_logprobs": [entry.logprob for entry in listed],
        "top_logprobs": [entry.told for entry in listed],
        "text_offset": offsets,
    }
