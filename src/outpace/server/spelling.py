"""Log-probabilities as clients see them: tokens spelled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outpace.types import TokenLogprobs

LOWEST = -9999.0
"""OpenAI's word for a log-probability of minus infinity, which JSON does not have."""
REPLACEMENT = "\ufffd"

Spell = Callable[[int], str]
"""The text of one token."""
Entry = dict[str, Any]


def entries(spell: Spell, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> list[Entry]:
    """One entry a token, as chats have them; None, before the first token of a prompt, has no log-probability."""
    return [_entry(spell, token, found) for token, found in zip(token_ids, logprobs, strict=True)]


def _entry(spell: Spell, token: int, found: TokenLogprobs | None) -> Entry:
    top = () if found is None else found.top
    return {
        **_spelled(spell, token, None if found is None else found.logprob),
        "top_logprobs": [_spelled(spell, other, logprob) for other, logprob in top],
    }


def _spelled(spell: Spell, token: int, logprob: float | None) -> Entry:
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
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in listed],
        "token_logprobs": [entry["logprob"] for entry in listed],
        "top_logprobs": [_top(entry) for entry in listed],
        "text_offset": offsets,
    }


def _top(entry: Entry) -> dict[str, float] | None:
    """The likeliest tokens and the token itself."""
    if entry["logprob"] is None:
        return None
    top = {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
    return top | {entry["token"]: entry["logprob"]}
