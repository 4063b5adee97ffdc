"""Reads the arguments that servers print: `name=value, …` and `'name': value, …`, as Python writes its values.

Values that are no literals (`torch.bfloat16`, `<Mode.FULL: 2>`) are kept as their text; nothing is evaluated.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

MOST_NESTED = 4
MOST_VALUE = 1 << 14
"""Characters of a value that is still read; a longer one is kept as text."""

_OPEN, _CLOSE = "([{<", ")]}>"
_CALL = re.compile(r"[A-Za-z_][\w.]*\((.*)\)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")


def read_arguments(text: str, separator: str = "=", nested: int = 0) -> dict[str, Any] | None:
    """What lies between the brackets of a call (`=`) or of a dict (`:`); None if that is no whole list of arguments."""
    parts = _split(text)
    if parts is None:
        return None
    values: dict[str, Any] = {}
    for part in parts:
        name, found, value = part.partition(separator)
        name = name.strip().strip("'\"")
        if not found or not _NAME.fullmatch(name):
            return None
        values[name] = _value(value.strip(), nested)
    return values


def _split(text: str) -> list[str] | None:
    """At commas outside of quotes and brackets; None if a quote or a bracket stays open."""
    parts, start, depth, quote = [], 0, 0, ""
    escaped = False
    for place, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        if depth < 0:
            return None
    if quote or depth:
        return None
    return [part for part in (*parts, text[start:]) if part.strip()]


def _value(text: str, nested: int) -> Any:
    if len(text) > MOST_VALUE:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash in somebody's path
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _nested(text, nested)


def _nested(text: str, nested: int) -> Any:
    """A dict or a call that holds something else than literals; its text where it is neither."""
    if nested < MOST_NESTED:
        call = _CALL.fullmatch(text)
        if call is not None:
            found = read_arguments(call[1], "=", nested + 1)
        elif text.startswith("{") and text.endswith("}"):
            found = read_arguments(text[1:-1], ":", nested + 1)
        else:
            found = None
        if found is not None:
            return found
    return text
