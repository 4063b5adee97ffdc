"""Checks a JSON object while it arrives, character by character, as strictly as RFC 8259."""

from __future__ import annotations

import re

SPACE = " \t\r\n"
MAX_DEPTH = 64
MAX_WORD = 128
"""Characters of a number."""

_WORD = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD_CHARACTERS = frozenset("-+.0123456789abcdefghijklmnopqrstuvwxyzE")


class JsonScanner:
    """One object, begun with its brace. After a character that is refused it is not to be used any more."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._expects = "value"
        """What may come next: value, item (a value or the list's end), key, member (a key or the object's end), colon,
        comma (or the end of what is open)."""
        self._word = ""
        self._in_string = False
        self._escape = 0
        """Characters of an escape that are still to come; 5 right behind the backslash."""
        self.string_is_key = False
        """What the last string was."""
        self.string_ended = False
        """The last character was a string's closing quote."""

    @property
    def depth(self) -> int:
        """How many objects and lists are open."""
        return len(self._open)

    @property
    def in_string(self) -> bool:
        return self._in_string

    def feed(self, character: str) -> bool:
        """Whether what came so far may go on as a JSON object. Nothing may follow its closing brace."""
        self.string_ended = False
        if self._in_string:
            return self._feed_string(character)
        if self._word:
            if character in _WORD_CHARACTERS:
                self._word += character
                return len(self._word) <= MAX_WORD
            if not _WORD.fullmatch(self._word):
                return False
            self._word, self._expects = "", "comma"
        return character in SPACE or self._feed_structure(character)

    def _feed_structure(self, character: str) -> bool:
        match self._expects:
            case "value" | "item":
                if character == "]" and self._expects == "item":
                    return self._close("[")
                return self._begin_value(character)
            case "key" | "member":
                if character == "}" and self._expects == "member":
                    return self._close("{")
                self._in_string = self.string_is_key = True
                return character == '"'
            case "colon":
                self._expects = "value"
                return character == ":"
        if character == ",":
            self._expects = "key" if self._open[-1] == "{" else "value"
            return True
        return character in "]}" and self._close("[" if character == "]" else "{")

    def _begin_value(self, character: str) -> bool:
        if not self._open and character != "{":
            return False
        if character in "{[":
            self._open.append(character)
            self._expects = "member" if character == "{" else "item"
            return len(self._open) <= MAX_DEPTH
        if character == '"':
            self._in_string, self.string_is_key = True, False
            return True
        self._word = character
        return character in _WORD_CHARACTERS

    def _close(self, bracket: str) -> bool:
        self._expects = "comma"
        return self._open.pop() == bracket

    def _feed_string(self, character: str) -> bool:
        if self._escape == 5:
            self._escape = 4 if character == "u" else 0
            return character in '"\\/bfnrtu'
        if self._escape:
            self._escape -= 1
            return character in "0123456789abcdefABCDEF"
        if character == '"':
            self._in_string = False
            self.string_ended = True
            self._expects = "colon" if self.string_is_key else "comma"
        elif character == "\\":
            self._escape = 5
        return character >= " "
