"""Words in what people read: those that follow a number, and those for what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_MISTYPED = 100
"""Characters. What is longer is near to nothing, and comparing it would take long."""


def count_of(number: int, noun: str) -> str:
    """`1 token`, `1,113 tokens`: nouns of this project take an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def break_even(accept_length: float) -> str:
    """A break-even accept length. Every cycle emits a token at least, so up to 1 there is none to reach."""
    return f"{accept_length:.2f}{', so every cycle pays' if every_cycle_pays(accept_length) else ''}"


def every_cycle_pays(break_even_at: float) -> bool:
    """Whether speculation is no slower than plain decoding whatever is accepted: a cycle takes no more than a step."""
    return break_even_at <= 1.0


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Of what is known, what `word` was probably meant to be; None if nothing is near."""
    if len(word) > LONGEST_MISTYPED:
        return None
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """What follows a message that refuses `word`."""
    meant = nearest(word, known)
    return f"; did you mean {meant}?" if meant else ""


def reason(error: BaseException) -> str:
    """What an error says; of the system's its words alone, since the message around them names the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
