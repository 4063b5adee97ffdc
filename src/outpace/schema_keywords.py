"""Which keywords of JSON Schema are honoured. Any other is refused: a misspelt one would admit wrong answers.

What the values of these keywords may be is for the grammar's library to say when it compiles the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outpace.errors import RequestError

MAX_DEPTH = 64
"""Values within values, the schema's own included."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Their values are names and schemas."""
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalItems", "additionalProperties"})
_VALUES = frozenset(
    ("type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems", "maxItems")
    + ("minLength", "maxLength", "pattern", "format")
    + ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)
_NOTES = frozenset(
    ("$schema", "$id", "$comment", "title", "description", "default", "example", "examples")
    + ("deprecated", "readOnly", "writeOnly")
)
"""They say nothing about what is valid."""
_KNOWN = _MAPS | _LISTS | _SCHEMAS | _VALUES | _NOTES


def check_schema(schema: Any) -> None:
    """Walks a schema.

    Raises:
        RequestError: a keyword is not honoured, or it is nested too deep; names the keyword and where it stands.
    """
    _check_depth(schema)
    below = [("#", schema)]
    while below:
        where, part = below.pop()
        if isinstance(part, bool) and where != "#":
            continue
        if not isinstance(part, dict):
            raise RequestError(f"grammar: the schema at {where} is {part!r:.60}; it must be an object")
        for keyword in part:
            if keyword not in _KNOWN:
                raise RequestError(
                    f"grammar: the schema's keyword {keyword!r:.60} at {where} is not supported; remove it"
                )
        below += _parts(where, part)


def _parts(where: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        at = f"{where}/{keyword}"
        if keyword in _MAPS and isinstance(value, dict):
            yield from ((f"{at}/{name:.60}", part) for name, part in value.items())
        elif (keyword in _LISTS or keyword in _SCHEMAS) and isinstance(value, list):
            yield from ((f"{at}/{place}", part) for place, part in enumerate(value))
        elif keyword in _SCHEMAS:
            yield at, value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise RequestError(f"grammar: the schema is nested deeper than {MAX_DEPTH} levels; make it flatter")
        level = [part for item in level for part in _inside(item)]
        depth += 1


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
