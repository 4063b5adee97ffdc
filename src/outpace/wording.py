"""Words in what people read: those that follow a number, and those for what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_MISTYPED = 100
"""Characters. What is longer is near to nothing, and comparing it would take long."""


def count_of(number: int, noun: str) -> str:
    """`1 token`, `1,113 tokens`: nouns of this project take an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Of what is known, what `word` was probably meant to be; None if nothing is near."""
    if len(word) > LONGEST_MISTYPED:
        return None
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """What follows a message that refuses `word`."""
    meant = nearest(word, known)
    return f"; did you mean {meant}?" if meant else ""
