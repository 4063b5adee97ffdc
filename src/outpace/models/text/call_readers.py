"""Reading one tool call while it arrives: its name, then its arguments as the model spells them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Protocol

from outpace.models.text.json_scan import SPACE, JsonScanner

MAX_NAME = 256
"""Characters of a function's name, as it is spelled."""

_ARGUMENTS = ("arguments", "parameters")
_KIMI_HEAD = re.compile(r"(functions\.)?(?P<name>[^\s:]+)(:[0-9]+)?\s*<\|tool_call_argument_begin\|>")


class CallReader(Protocol):
    """Fed one character after another until one is refused, which makes it no call, or it is `done`."""

    name: str | None
    """The function, once it is known."""
    arguments: list[str]
    """Characters of the arguments' JSON object so far; whoever takes them empties the list."""
    done: bool

    def feed(self, character: str) -> bool: ...


class ObjectReader:
    """`{"name": …, "arguments": {…}}`: in any order, "parameters" for "arguments" too, other keys ignored.

    Args:
        names: the functions that there are; None takes any.
    """

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = names
        self._scanner = JsonScanner()
        self._string: list[str] = []
        """The string at the top that is being read, where it matters."""
        self._key = ""
        self._in_arguments = self._has_arguments = False
        self.name: str | None = None
        self.arguments: list[str] = []
        self.done = False

    def feed(self, character: str) -> bool:
        scanner = self._scanner
        depth, was_in_string = scanner.depth, scanner.in_string
        if not scanner.feed(character):
            return False
        if self._in_arguments:
            self.arguments.append(character)
            self._in_arguments = scanner.depth > 1
            return True
        if depth == 1 and scanner.depth == 2:
            return self._key not in _ARGUMENTS or self._begin_arguments(character)
        if scanner.depth == 1 and was_in_string:
            return self._read_string(character)
        if depth and not scanner.depth:
            self.done = True
            return self.name is not None and self._has_arguments
        return True

    def _begin_arguments(self, character: str) -> bool:
        if character != "{" or self._has_arguments:
            return False
        self._in_arguments = self._has_arguments = True
        self.arguments.append(character)
        return True

    def _read_string(self, character: str) -> bool:
        is_key = self._scanner.string_is_key
        if not is_key and self._key != "name":
            return self._key not in _ARGUMENTS
        if not self._scanner.string_ended:
            self._string.append(character)
            return len(self._string) <= MAX_NAME
        text = json.loads(f'"{"".join(self._string)}"')
        self._string = []
        if is_key:
            self._key = text
            return True
        again, self.name = self.name is not None, text
        return not again and _is_offered(text, self._names)


def mistral_name(head: str) -> str:
    """`name[ARGS]`, with `[CALL_ID]…` before it or without both: Mistral's newer spelling."""
    return head.removesuffix("[ARGS]").partition("[CALL_ID]")[0].strip(SPACE)


def kimi_name(head: str) -> str:
    """`functions.name:0<|tool_call_argument_begin|>`; empty if it is not."""
    found = _KIMI_HEAD.fullmatch(head.strip(SPACE))
    return "" if found is None else found["name"]


class NamedReader:
    """A function's name, spelled without JSON, and its arguments.

    Args:
        names: the functions that there are; None takes any.
        read_name: finds the name in what stands before the arguments; an empty one makes it no call.
    """

    def __init__(self, names: Collection[str] | None, read_name: Callable[[str], str]) -> None:
        self._names, self._read_name = names, read_name
        self._scanner: JsonScanner | None = None
        self._head: list[str] = []
        self.name: str | None = None
        self.arguments: list[str] = []
        self.done = False

    def feed(self, character: str) -> bool:
        if self._scanner is None:
            if character != "{":
                self._head.append(character)
                return len(self._head) <= 2 * MAX_NAME and character not in '"}'
            self._scanner = JsonScanner()
            self.name = self._read_name("".join(self._head))
            if not _is_offered(self.name, self._names):
                return False
        if not self._scanner.feed(character):
            return False
        self.arguments.append(character)
        self.done = not self._scanner.depth
        return True


def _is_offered(name: str, names: Collection[str] | None) -> bool:
    if names is not None:
        return name in names
    return 0 < len(name) <= MAX_NAME and name.isprintable() and not set(name) & set(" []{}")
