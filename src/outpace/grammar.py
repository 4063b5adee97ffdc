"""`Grammar`: the language that one answer must be written in.

    SamplingParams(grammar=Grammar.json_schema({"type": "object", "properties": {"city": {"type": "string"}}}))
    SamplingParams(grammar=Grammar.regex(r"\\d{4}-\\d{2}-\\d{2}"))
    SamplingParams(grammar=Grammar.choice(["yes", "no"]))
    SamplingParams(grammar=Grammar.ebnf('root ::= "a" root | "b"'))

The answer is a text of the language, or the beginning of one where `max_tokens` cut it. A tokenizer is needed; what the
grammar's library cannot honour is refused when the request begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from outpace.checks import check_unicode
from outpace.errors import RequestError
from outpace.schema_keywords import check_schema

Kind = Literal["json_schema", "regex", "choice", "ebnf"]
MAX_CHARACTERS: dict[Kind, int] = {"json_schema": 1 << 17, "regex": 1 << 13, "choice": 1 << 17, "ebnf": 1 << 17}
"""Of a grammar's source."""
MAX_CHOICES = 1024
SPACES = r"[ \t\n\r]{0,16}"
"""Between the parts of a JSON text: without a bound, a weak model may write spaces for ever."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language, as text. Equal grammars are compiled once.

    Raises:
        RequestError: it is too large, or no such grammar at first sight; names the keyword, the limit and the remedy.
    """

    kind: Kind
    source: str
    """A JSON schema as JSON, a regular expression, a JSON list of texts, or rules: EBNF as llama.cpp writes it, with a
    rule `root`, or llguidance's Lark, with a rule `start`. Lark may name special tokens (`<|im_start|>`, or `<[7]>` by
    id) and hold JSON schemas (`%json {…}`)."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise RequestError(f"grammar kind is {self.kind!r:.60}; it must be one of {', '.join(get_args(Kind))}")
        if not isinstance(self.source, str) or not self.source:
            raise RequestError(f"grammar is {self.source!r:.60}; give it as a text that is not empty")
        most = MAX_CHARACTERS[self.kind]
        if len(self.source) > most:
            raise RequestError(
                f"grammar has {len(self.source)} characters; a {self.kind} may have {most}: make it shorter"
            )
        check_unicode(RequestError, "grammar", self.source)
        if self.kind == "json_schema":
            check_schema(_loaded(self.source))
        elif self.kind == "choice":
            _check_choices(_loaded(self.source))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that a schema admits, its properties in the schema's order; the schema as an object or as JSON."""
        return cls("json_schema", schema if isinstance(schema, str) else _dumped(schema))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that a regular expression matches as a whole. No look-around, no back-references."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """One of some texts."""
        return cls("choice", _dumped(list(choices)))

    @classmethod
    def ebnf(cls, rules: str) -> Grammar:
        """A context-free grammar; see `source`."""
        return cls("ebnf", rules)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON that a schema admits, as a part of a Lark rule."""
    text = _dumped({**schema, "x-guidance": {"whitespace_pattern": SPACES}})
    return "%json " + text.replace("%", "\\u0025")  # in a text of the schema it would begin a directive


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"grammar {value!r:.60} cannot be written as JSON: {error}") from error


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"grammar {text!r:.60} is no JSON: {error}") from error


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise RequestError(f"grammar must be a choice of 1 … {MAX_CHOICES} texts; it is {choices!r:.60}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise RequestError(f"grammar has the choice {choice!r:.60}; each must be a text that is not empty")
