"""Finding the first of several strings in a text that arrives in pieces, and how much of the text is safe to show.

All strings are searched at once, character by character (Aho and Corasick 1975), so that the work for a character does
not depend on their number, and what is found does not depend on where the pieces begin and end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """The match that is complete first wins; of two that end at the same character, the longer one.

    Text that may be the beginning of a match is held back until that is decided.

    Args:
        strings: what is searched; none may be empty.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        # State i is a beginning of some string: _next[i] leads on, _shorter[i] is its longest proper end that is such
        # a beginning too, _depth[i] its length, _found[i] the longest of the strings that it ends with.
        self._next: list[dict[str, int]] = [{}]
        self._shorter, self._depth = [0], [0]
        self._found: list[str | None] = [None]
        for string in strings:
            self._add(string)
        self._link()
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The string that was found last."""

    def push(self, text: str, start: int = 0, *, armed: bool = True) -> tuple[str, int]:
        """Searches on.

        Args:
            text: the next piece, from `start` on.
            start: a place in `text`.
            armed: matches that are complete within this piece count.

        Returns:
            What may be shown now, up to the match if there is one, and where in `text` the search ended: behind the
            match, or at the end. After a match it starts over.
        """
        self.matched = None
        state = self._state
        for place in range(start, len(text)):
            character = text[place]
            while state and character not in self._next[state]:
                state = self._shorter[state]
            state = self._next[state].get(character, 0)
            found = self._found[state]
            if found is not None and armed:
                seen = self._held + text[start : place + 1]
                self._state, self._held, self.matched = 0, "", found
                return seen[: -len(found)], place + 1
        seen = self._held + text[start:]
        shown = len(seen) - self._depth[state]
        self._state, self._held = state, seen[shown:]
        return seen[:shown], len(text)

    def finish(self) -> str:
        """What was held back, at the text's end."""
        held, self._state, self._held = self._held, 0, ""
        return held

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][character]
        self._found[state] = string

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            if self._found[state] is None:
                self._found[state] = self._found[self._shorter[state]]
            for character, following in self._next[state].items():
                shorter = self._shorter[state]
                while shorter and character not in self._next[shorter]:
                    shorter = self._shorter[shorter]
                self._shorter[following] = self._next[shorter].get(character, 0)
                waiting.append(following)
