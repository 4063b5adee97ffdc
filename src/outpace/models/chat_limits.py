"""How much one rendering of a chat template may do, and what is refused before it is done.

A time limit would need signals, which threads do not have, and would refuse on a slow machine what a fast one serves;
so work is counted. The same messages are rendered or refused alike on every machine, the worst of them in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
MAX_CHARACTERS = 64 << 20
"""Made by all expressions of one rendering together, and by any one of them."""
MAX_NUMBER = 1_000_000
"""Largest number that a function or filter may be given: a width, a count."""

BUDGET = "outpace budget"
"""Where the context keeps the `Budget`. No template can spell this name."""

_GROWING = frozenset(("center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "wordwrap", "zfill"))
_WIDE = re.compile(r"\d{4}|\*|\{[^{}]*\{")
"""In a format string: a width of four digits, or one that is computed."""


class Budget:
    """What one rendering may still do."""

    __slots__ = ("_characters", "_steps")

    def __init__(self) -> None:
        self._steps, self._characters = MAX_STEPS, MAX_CHARACTERS

    def spend(self, steps: int, characters: int = 0) -> None:
        """Counts work. Raises SecurityError, as everything here does, when it is too much."""
        self._steps -= steps
        self._characters -= characters
        if self._steps < 0:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        if self._characters < 0:
            raise SecurityError(f"the template makes more than {MAX_CHARACTERS} characters")

    def measure(self, value: Any) -> Any:
        """Counts a value with everything in it, parts that it holds twice twice, and returns it."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Namespace):
                item = object.__getattribute__(item, "_Namespace__attrs")
            if isinstance(item, dict):
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                waiting += item
            self.spend(1, len(item) if isinstance(item, str) else 0)
        return value


def budget_of(context: Context) -> Budget:
    """The budget that the renderer put into the context."""
    budget: Budget = context.parent[BUDGET]
    return budget


def check_arguments(name: str, subject: Any, args: Iterable[Any]) -> None:
    """Before `name` is called with `args`; `subject` is the object it belongs to, or the value it filters."""
    args = tuple(args)
    if any(isinstance(arg, int) and abs(arg) > MAX_NUMBER for arg in args):
        raise SecurityError(f"the template calls {name or 'a function'} with a number above {MAX_NUMBER}")
    if name == "format" and isinstance(subject, str):
        check_format(subject, args)
    elif name in _GROWING:
        check_product(subject, args)


def check_format(form: str, args: Iterable[Any]) -> None:
    """Before `args` are put into a format string."""
    args = tuple(args)
    if _WIDE.search(form):
        raise SecurityError("the template formats with a computed width or one above 999")
    if not all(arg is None or isinstance(arg, str | int | float) for arg in args):
        raise SecurityError("the template formats something that is neither a text nor a number")
    check_product(form, [arg for arg in args if isinstance(arg, str)])


def check_product(subject: Any, args: Iterable[Any]) -> None:
    """Before something as long as the subject, times the largest of the others, is made."""
    factor = max((size_of(arg) for arg in args), default=0)
    if (size_of(subject) + 1) * factor > MAX_CHARACTERS:
        raise SecurityError(f"the template multiplies to more than {MAX_CHARACTERS} characters at once")


def size_of(value: Any) -> int:
    """A number's magnitude, or a length."""
    return int(abs(value)) if isinstance(value, int | float) and abs(value) < 1e300 else length_of(value)


def length_of(value: Any) -> int:
    """Characters or elements; 0 for everything else."""
    return len(value) if isinstance(value, str | list | tuple | dict) else 0
