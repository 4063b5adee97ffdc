"""The tokens that end an answer: decided once, for the engine, training and `inspect` alike.

Every token that any of a checkpoint's files names counts, as in SGLang: none of them is ever text, and an answer that
misses its end runs on to `max_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ends:
    """Token ids in the order they were named, and a sentence that says by what."""

    token_ids: tuple[int, ...]
    note: str


def resolve_ends(named: Sequence[tuple[str, Iterable[int]]], vocab_size: int) -> Ends:
    """Joins what several places name.

    Args:
        named: (place, its ids), the one that is to be believed first at the front.
        vocab_size: ids that the model cannot emit are left out.
    """
    places: dict[int, list[str]] = {}
    for place, ids in named:
        for token in ids:
            if token < vocab_size:
                places.setdefault(token, []).append(place)
    if not places:
        looked_in = ", ".join(place for place, _ in named)
        return Ends((), f"no token ends an answer, max_tokens does: none is named by {looked_in}")
    listed = "; ".join(f"{token} ({', '.join(dict.fromkeys(by))})" for token, by in places.items())
    return Ends(tuple(places), f"answers end at token {listed}")
