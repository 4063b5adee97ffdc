"""How much one rendering of a chat template may do, and what is refused before it is done.

A time limit would need signals, which threads do not have, and would refuse on a slow machine what a fast one serves;
so work is counted. The same messages are rendered or refused alike on every machine, the worst of them in seconds.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
MAX_CHARACTERS = 64 << 20
"""Made or looked at by all expressions of one rendering together."""
MAX_PRODUCT = 16 << 20
"""Characters or elements that one product may make."""
MAX_NUMBER = 1_000_000
"""Largest number that a function or filter may be given: a width, a count."""

BUDGET = "outpace budget"
"""Where the context keeps the `Budget`. No template can spell this name."""

_GROWING = frozenset(
    ("center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "translate", "wordwrap", "zfill")
)
_STRIDE = 64
"""Length of an argument that a search passes at no cost worth counting: longer than what real templates look for."""
_UNIT_CHARACTERS = 16
"""What a number that is given counts for each unit, and a range for each of its numbers."""
NODE_CHARACTERS = 8
"""What each part of a loop's or macro's body counts in each pass, executed or not."""
MAX_DATE_FORM = 256
"""Characters of a form for a date: each may make hundreds."""
_COMPUTED = re.compile(r"\*|\{[^{}]*\{")
"""In a format string: a width that is computed."""


class Budget:
    """What one rendering may still do."""

    __slots__ = ("_characters", "_steps")

    def __init__(self) -> None:
        self._steps, self._characters = MAX_STEPS, MAX_CHARACTERS

    @property
    def used(self) -> float:
        """The part of it that is spent, 0 … 1."""
        return max(1 - self._steps / MAX_STEPS, 1 - self._characters / MAX_CHARACTERS)

    def spend(self, steps: int, characters: int = 0) -> None:
        """Counts work. Raises SecurityError, as everything here does, when it is too much."""
        self._steps -= steps
        self._characters -= characters
        if self._steps < 0:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        if self._characters < 0:
            raise SecurityError(f"the template works on more than {MAX_CHARACTERS} characters")

    def weigh(self, value: Any) -> int:
        """Counts a value with everything in it, parts that it holds twice twice; returns its characters and parts."""
        weight, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Namespace):
                item = object.__getattribute__(item, "_Namespace__attrs")
            if isinstance(item, dict):
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
                waiting += item
            length = len(item) if isinstance(item, str) else 0
            if isinstance(item, range):
                length = _UNIT_CHARACTERS * len(item)
            if isinstance(item, bytes):
                raise SecurityError("the template makes bytes; only texts are made")
            self.spend(1, length)
            weight += 1 + length
        return weight

    def call(self, name: str, subject: Any, args: Iterable[Any]) -> None:
        """Counts a call before it is made: all that it looks at, and more where an argument is long.

        Stripping by a set of characters or searching from the right takes subject × argument; so all calls count that
        product, in strides.

        Args:
            name: of the function, method, filter or test.
            subject: the object it belongs to, or the value that it filters.
            args: the others.
        """
        args = tuple(args)
        if any(isinstance(arg, int) and abs(arg) > MAX_NUMBER for arg in args):
            raise SecurityError(f"the template calls {name or 'a function'} with a number above {MAX_NUMBER}")
        if name == "format" and isinstance(subject, str):
            check_format(subject, args)
        if name == "sum" and any(isinstance(arg, list | tuple) for arg in args):
            raise SecurityError("the template sums lists; only numbers are summed")
        size = self.weigh(subject)
        longest = max((self._weigh_argument(arg) for arg in args), default=0)
        if name in _GROWING:
            check_product(size, longest)
        self.spend(1, size * (longest // _STRIDE))

    def _weigh_argument(self, value: Any) -> int:
        if not isinstance(value, int):
            return self.weigh(value)
        self.spend(1, _UNIT_CHARACTERS * abs(value))
        return abs(value)


def budget_of(context: Context) -> Budget:
    """The budget that the renderer put into the context."""
    budget: Budget = context.parent[BUDGET]
    return budget


def check_format(form: str, args: Iterable[Any]) -> None:
    """Before `args` are put into a format string. Any number in it may be a width."""
    args = tuple(args)
    if _COMPUTED.search(form):
        raise SecurityError("the template formats with a computed width")
    if not all(arg is None or isinstance(arg, str | int | float) for arg in args):
        raise SecurityError("the template formats something that is neither a text nor a number")
    widths = map(int, re.findall(r"\d+", form))
    check_product(len(form) + 1, max((*widths, *(len(arg) for arg in args if isinstance(arg, str))), default=0))


def check_product(size: int, factor: int) -> None:
    """Before something of this size, so many times, is made."""
    if size * factor > MAX_PRODUCT:
        raise SecurityError(f"the template multiplies to more than {MAX_PRODUCT} characters at once")


def length_of(value: Any) -> int:
    """Characters or elements; 0 for everything else."""
    return len(value) if isinstance(value, str | list | tuple | dict) else 0
