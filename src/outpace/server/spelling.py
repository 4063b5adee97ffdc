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
REPLACEMENT = "\ufffd"

Spell = Callable[[int], str]
"""The text of one token."""


class Entry(NamedTuple):
    """One token."""

    token: str
    logprob: float | None
    told: msgspec.Raw
    """In chats all of it; in a column of completions the likeliest tokens."""


def entries(
    spell: Spell, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], *, columnar: bool = False
) -> list[Entry]:
    """One entry a token; None, before the first token of a prompt, has no log-probability."""
    write = _top if columnar else _chat
    return [_entry(write, spell, token, found) for token, found in zip(token_ids, logprobs, strict=True)]


def _entry(write: Callable[..., Any], spell: Spell, token: int, found: TokenLogprobs | None) -> Entry:
    own = _spelled(spell, token, None if found is None else found.logprob)
    top = [] if found is None else [_spelled(spell, other, logprob) for other, logprob in found.top]
    return Entry(own["token"], own["logprob"], msgspec.Raw(msgspec.json.encode(write(own, top))))


def _chat(own: dict[str, Any], top: list[dict[str, Any]]) -> dict[str, Any]:
    return {**own, "top_logprobs": top}


def _top(own: dict[str, Any], top: list[dict[str, Any]]) -> dict[str, float] | None:
    """The likeliest tokens and the token itself."""
    if own["logprob"] is None:
        return None
    return {other["token"]: other["logprob"] for other in top} | {own["token"]: own["logprob"]}


def _spelled(spell: Spell, token: int, logprob: float | None) -> dict[str, Any]:
    text = spell(token)
    # A token that is part of a character has no text of its own, and so no bytes that its text would tell.
    known = None if REPLACEMENT in text else list(text.encode())
    return {"token": text, "logprob": None if logprob is None else max(LOWEST, logprob), "bytes": known}


def columns(listed: Sequence[Entry], offset: int) -> dict[str, list[Any]]:
    """Entries as completions have them: by column.

    Args:
        listed: the entries.
        offset: characters of all tokens before them.
    """
    offsets = []
    for entry in listed:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in listed],
        "token_logprobs": [entry.logprob for entry in listed],
        "top_logprobs": [entry.told for entry in listed],
        "text_offset": offsets,
    }
