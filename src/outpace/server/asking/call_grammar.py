"""Tool calls as a grammar, in the model's own spelling: what an answer may be whose calls must fit their schemas.

    free text, then a call:   head ─► gap ─► {"name": "weather", "arguments": %json {…}} ─► gap ─► close

An opening that is a special token is named by its id; any other is found in the text, however tokens spell it, at the
first place where it is complete. Free text is any Unicode text without the opening, which begins a call, and without
special tokens. An answer ends behind the last call that may be.

Some spellings leave a model less freedom than it has without such a grammar: Llama 3's, in which an answer that begins
with `{` is a call, and nothing follows calls; Mistral's, in which nothing follows a list of calls; and Kimi's, in which
nothing follows a section of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from outpace.grammar import SPACES, Grammar, json_rule
from outpace.models.text.tool_formats import ToolFormat

SpecialId = Callable[[str], int | None]
"""The id of a token that an answer's text would leave out; None where ordinary tokens spell a text."""
Call = tuple[str, dict[str, Any]]
"""A function's name, and the schema of its arguments, which is an object's."""
ANY = "(?s:.*)"
NUMBER = "0|[1-9][0-9]{0,3}"
"""Of a call in its conversation: the model counts, and nobody reads it."""
FIRST_ARGUMENTS = 2
"""The line of the first call's arguments; each call's has one, in their order."""


def place_of_line(line: int) -> int:
    """Which call's arguments stand in a line of a grammar, if such do."""
    return line - FIRST_ARGUMENTS


class CallGrammar:
    """The rules of one request.

    Args:
        form: how the model spells calls.
        calls: what may be called.
        most_calls: how many there may be in an answer.
        special_id: knows the model's special tokens.
    """

    def __init__(self, form: ToolFormat, calls: Sequence[Call], most_calls: int, special_id: SpecialId) -> None:
        self._form = form
        self._calls = calls
        self._further = most_calls - 1
        self._special_id = special_id

    def forced(self) -> Grammar:
        """At least one call, and nothing else."""
        return self._grammar(self._only_calls())

    def or_json(self, schema: dict[str, Any]) -> Grammar:
        """At least one call and nothing else, or JSON that a schema admits."""
        return self._grammar([*self._only_calls(), json_rule(schema)])

    def free(self) -> Grammar:
        """Any text, with calls in it or without."""
        form = self._form
        first, name = (form.section[0], "begin") if form.section else (form.opening, "open")
        apart = rf" & ~/{SPACES}\{{{ANY}/" if form.bare else ""
        if form.section:
            apart += f" & ~/{ANY}{re.escape(form.opening)}{ANY}/"
        rules = [f"text: TEXT\nTEXT: /{ANY}/ & ~/{ANY}{re.escape(first)}{ANY}/{apart}"]
        if self._special_id(first) is None:
            rules.append(f"head[lazy]: HEAD\nHEAD: /{ANY}{re.escape(first)}/{apart}")
        else:
            rules.append(f"head: text {name}")
        starts = ["text", *self._listed("head gap"), *self._listed("gap")[: form.bare], *self._section("head")]
        if unit := self._unit():
            starts.append(f"{self._repeated(f'head gap {unit}')} (text | head gap {unit})")
        return self._grammar(starts, *rules)

    def _only_calls(self) -> list[str]:
        starts = [
            *self._listed("gap open gap"),
            *self._listed("gap")[: self._form.bare],
            *self._section("gap begin"),
        ]
        if unit := self._unit():
            starts.append(f"gap open gap {unit} {self._repeated(f'gap open gap {unit}')}")
        return starts

    def _listed(self, before: str) -> list[str]:
        """Calls with separators between them, if the form has such; behind them nothing may come."""
        if not self._form.separator:
            return []
        joined = f"object {self._repeated(f'gap {_quoted(self._form.separator)} gap object')}"
        return [f'{before} "[" gap {joined} gap "]"' if self._form.listed else f"{before} {joined}"]

    def _section(self, before: str) -> list[str]:
        """Calls within a section, if the form has such; behind it nothing may come."""
        if not self._form.section:
            return []
        call = "gap open gap named gap close"
        return [f"{before} {call} {self._repeated(call)} gap end"]

    def _unit(self) -> str:
        """One call behind an opening of its own, if the form has such and no sections."""
        if self._form.section:
            return ""
        if self._form.named:
            return "named"
        return "" if self._form.separator else "object gap close"

    def _repeated(self, part: str) -> str:
        """A part for each further call."""
        return f"({part}){{0,{self._further}}}" if self._further else ""

    def _grammar(self, starts: Sequence[str], *rules: str) -> Grammar:
        form = self._form
        lines = ["start: " + " | ".join(starts)]
        lines += [f"arguments_{place}: {json_rule(schema)}" for place, (_, schema) in enumerate(self._calls)]
        lines += [*rules, f"gap: /{SPACES}/", f"open: {self._token(form.opening)}"]
        if form.closing and not form.listed:
            lines.append(f"close: {self._token(form.closing)}")
        lines.append("object: " + " | ".join(f"object_{place}" for place in range(len(self._calls))))
        for place, (name, _) in enumerate(self._calls):
            parts = ("{", '"name"', ":", json.dumps(name), ",", f'"{form.key}"', ":")
            lines.append(
                f"object_{place}: {' gap '.join(map(_quoted, parts))} gap arguments_{place} gap {_quoted('}')}"
            )
        if form.section:
            lines += [f"{rule}: {self._token(text)}" for rule, text in zip(("begin", "end"), form.section, strict=True)]
        if form.named or form.numbered:
            lines.append("named: " + " | ".join(f"named_{place}" for place in range(len(self._calls))))
            lines += [
                f"named_{place}: {self._named(name)} gap arguments_{place}"
                for place, (name, _) in enumerate(self._calls)
            ]
        return Grammar.ebnf("\n".join(lines))

    def _named(self, name: str) -> str:
        """What stands before the arguments."""
        if self._form.numbered:
            arguments = self._token("<|tool_call_argument_begin|>")
            return f"{_quoted(f'functions.{name}:')} /{NUMBER}/ gap {arguments}"
        # Some of Mistral's models put an id between name and arguments.
        found = self._special_id("[CALL_ID]")
        call_id = "" if found is None else f"(<[{found}]> /[A-Za-z0-9]{{9}}/)? "
        return f"{_quoted(name)} {call_id}{self._token('[ARGS]')}"

    def _token(self, text: str) -> str:
        found = self._special_id(text)
        return _quoted(text) if found is None else f"<[{found}]>"


def _quoted(text: str) -> str:
    return json.dumps(text)
