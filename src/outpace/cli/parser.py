"""argparse, with an error that names what was mistyped and what was probably meant.

argparse alone shows the main program's usage, names no option that is near, and of two mistakes tells a missing
argument first, which often is only the other's consequence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from outpace.wording import suggestion

WRONG_USE = 2


class Parser(argparse.ArgumentParser):
    """Its subparsers are of this kind too."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuses what it does not know, so each subparser tells of its own mistakes."""
        words = list(sys.argv[1:] if args is None else args)
        ours = words if self._subparsers is None else takewhile(lambda word: word[:1] == "-", words)
        self._refuse_options(word for word in takewhile(lambda word: word != "--", ours) if word[:2] == "--")
        found, left = super().parse_known_args(words, namespace)
        self._refuse_options(word for word in left if word[:1] == "-")
        if left:
            self.error(f"{left[0]!r} is one argument too many")
        return found, left

    def error(self, message: str) -> NoReturn:
        """A usage of one line, since the options of a command fill a page; then the message."""
        needed = [action for action in self._actions if action.required or not action.option_strings]
        usage = self.formatter_class(prog=f"{self.prog} [options]")
        usage.add_usage(None, needed, [])
        shown = f"{usage.format_help().strip()}\n       {self.prog} --help"
        print(f"{shown}\n{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(WRONG_USE)

    def _refuse_options(self, words: Iterable[str]) -> None:
        """A word with a blank is a text to argparse, and the beginning of an option stands for it."""
        for word in words:
            name = word.partition("=")[0]
            if " " not in word and not any(known.startswith(name) for known in self._option_string_actions):
                self.error(f"there is no option {name}{suggestion(name, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.nargs == argparse.PARSER:
            self.error(f"there is no command {value!r}{suggestion(value, action.choices)}")
        known = list(map(str, action.choices))
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(known)}{suggestion(str(value), known)}")
