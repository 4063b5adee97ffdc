"""Checks of what a user sets: the message says the value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import index
from typing import Any

from outpace.errors import OutpaceError


def check_integers(settings: Any, error: type[OutpaceError], limits: dict[str, tuple[int, int]]) -> None:
    """Integer fields of any integer type; None passes.

    Raises:
        error: a value is no integer, or out of its range.
    """
    for name, (low, high) in limits.items():
        value = getattr(settings, name)
        if value is None:
            continue
        if not _is_integer(value):
            raise error(f"{name} is {value!r}; it must be an integer in {low} … {high}")
        if not low <= value <= high:
            raise error(f"{name} is {value}; it must lie in {low} … {high}")


def check_real(settings: Any, error: type[OutpaceError], name: str, low: float, high: float) -> None:
    """One field that is a real number.

    Raises:
        error: the value is no number, or out of its range.
    """
    _check_number(error, name, getattr(settings, name), low, high)


def check_ids(error: type[OutpaceError], name: str, value: Any, most: int) -> None:
    """A list of token ids. Whether the vocabulary has them is not known here.

    Raises:
        error: it is no list, holds something else, or is too long.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise error(f"{name} are {value!r:.60}; they must be a list of token ids")
    if len(value) > most:
        raise error(f"{name} are {len(value)}; there may be {most}")
    for token in value:
        if not _is_integer(token):
            raise error(f"{name} holds {token!r}; it must hold token ids")


def check_unicode(error: type[OutpaceError], name: str, text: str) -> None:
    """A text that can be written in UTF-8.

    Raises:
        error: it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        raise error(f"{name} holds {text[wrong.start]!r}, half of a surrogate pair, which is no character") from wrong


def frozen_bias(error: type[OutpaceError], name: str, value: Any, most: int, limit: float) -> tuple[Any, ...]:
    """A mapping from token ids to numbers in -limit … limit, or its pairs, as pairs that nobody can change.

    Raises:
        error: it is neither, names an id twice, has more than `most` entries, or a number is out of its range.
    """
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    form = "it must map token ids to numbers"
    if not isinstance(pairs, Collection) or isinstance(pairs, str | bytes):
        raise error(f"{name} is {value!r:.60}; {form} in {-limit:g} … {limit:g}")
    if len(pairs) > most:
        raise error(f"{name} has {len(pairs)} entries; there may be {most}")
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not _is_integer(pair[0]):
            raise error(f"{name} holds {pair!r:.60}; {form} in {-limit:g} … {limit:g}")
        token = index(pair[0])
        _check_number(error, f"{name} of token {token}", pair[1], -limit, limit)
        if token in found:
            raise error(f"{name} names token {token} 2 times; name it once")
        found[token] = float(pair[1])
    return tuple(found.items())


def frozen_words(
    error: type[OutpaceError], name: str, value: Any, most: int, longest: int
) -> tuple[tuple[int, ...], ...]:
    """A list of token id sequences, as tuples.

    Raises:
        error: it is no such list, has more than `most` of them, or one is empty or longer than `longest`.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise error(f"{name} are {value!r:.60}; they must be a list of up to {most} lists of token ids")
    if len(value) > most:
        raise error(f"{name} are {len(value)}; there may be {most}")
    for place, word in enumerate(value):
        check_ids(error, f"{name}[{place}]", word, longest)
        if not word:
            raise error(f"{name}[{place}] is empty; give it 1 … {longest} token ids")
    return tuple(tuple(map(index, word)) for word in value)


def _check_number(error: type[OutpaceError], name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise error(f"{name} is {value!r}; it must be a number in {low:g} … {high:g}")
    if not low <= value <= high:
        raise error(f"{name} is {value}; it must lie in {low:g} … {high:g}")


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
