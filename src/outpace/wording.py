"""Words that follow a number, in what people read."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """`1 token`, `1,113 tokens`: nouns of this project take an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
