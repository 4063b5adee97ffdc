"""What a grammar may be, at first sight."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from outpace import Grammar, RequestError, SamplingParams


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"minLenght": 3}, "'minLenght' at # "),
        ({"not": {}}, "'not' at #"),
        ({"properties": {"a": {"items": {"if": {}}}}}, "'if' at #/properties/a/items"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "'uniqueItems' at #/anyOf/1"),
        ({"$defs": {"x": {"unevaluatedProperties": False}}}, "'unevaluatedProperties' at #/\\$defs/x"),
        ({"x-guidance": {"lenient": True}}, "'x-guidance'"),
        ({"items": 3}, "#/items is 3"),
        ([], "at # is \\[\\]"),
        (True, "at # is True"),
        (nested(65), "deeper than 64"),
        ({"enum": [[[["a"] * 3]]] * 40_000}, "characters"),
    ],
)
def test_a_schema_that_is_not_honoured_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Grammar.json_schema(schema)


def test_names_and_values_are_no_keywords() -> None:
    """A property may be called as an unknown keyword, and an enum may hold an object with one."""
    Grammar.json_schema({"properties": {"not": {"type": "string"}}, "required": ["not"]})
    Grammar.json_schema({"enum": [{"not": 1}], "default": {"if": 2}, "additionalProperties": False})
    Grammar.json_schema(nested(60))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.regex(""), "not empty"),
        (lambda: Grammar.regex("a" * 8193), "8193 characters.*8192"),
        (lambda: Grammar.ebnf("a" * 131073), "131072"),
        (lambda: Grammar.choice([]), "1 … 1024 texts"),
        (lambda: Grammar.choice(["a"] * 1025), "1 … 1024 texts"),
        (lambda: Grammar.choice(["a", ""]), "not empty"),
        (lambda: Grammar.choice([1]), "the choice 1"),  # type: ignore[list-item]
        (lambda: Grammar.json_schema("{"), "no JSON"),
        (lambda: Grammar.json_schema("[" * 100_000), "no JSON|deeper"),
        (lambda: Grammar.json_schema({"const": object()}), "as JSON"),
        (lambda: Grammar("yaml", "a"), "'yaml'.*json_schema"),  # type: ignore[arg-type]
        (lambda: SamplingParams(grammar="a"), "must be a Grammar"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_grammar_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()


def test_it_travels_as_a_message_and_is_checked_there() -> None:
    params = SamplingParams(grammar=Grammar.json_schema({"type": "object", "properties": {"é": {"type": "null"}}}))
    packed = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(packed, type=SamplingParams) == params
    wrong = json.loads(msgspec.json.encode(params))
    wrong["grammar"]["source"] = '{"not": {}}'
    with pytest.raises((RequestError, msgspec.ValidationError), match="'not'"):
        msgspec.json.decode(json.dumps(wrong), type=SamplingParams)
