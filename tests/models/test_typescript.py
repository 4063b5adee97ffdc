"""Tools as Kimi-K2.5's template takes them, against what the published encoder writes for the same schemas."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.models.text.chat_template import ChatTemplate
from outpace.models.text.typescript import declarations


def tool(parameters: dict[str, Any], description: str | None = None) -> dict[str, Any]:
    named = {"name": "f", "parameters": parameters} | ({} if description is None else {"description": description})
    return {"type": "function", "function": named}


def body(*lines: str) -> str:
    return "\n".join(("# Tools", "", "## functions", "namespace functions {", *lines, "}", ""))


def test_a_function_with_everything_plain() -> None:
    properties = {
        "z": {"type": "string", "description": "Two\n\nlines", "minLength": 1, "maxLength": 5},
        "b": {"type": "integer", "default": 3, "minimum": 0},
        "a": {"type": "array", "items": {"type": "string", "description": "one"}, "maxItems": 4},
        "c": {"enum": ["x", 2, None], "description": "pick"},
        "d": {"type": ["string", "null"], "default": "é"},
        "e": {"anyOf": [{"type": "boolean"}, {"type": "array"}], "default": True},
        "o": {"type": "object", "properties": {"k": {}}, "additionalProperties": {"type": "number"}},
        "t": True,
    }
    parameters = {"type": "object", "required": ["z", "a"], "additionalProperties": False, "properties": properties}
    assert declarations([tool(parameters, "Does it.")]) == body(
        "// Does it.",
        "type f = (_: {",
        "  // maxItems: 4",
        "  a: Array<",
        "    // one",
        "    string",
        "  >,",
        "  // Two",
        "",
        "  // lines",
        "  // maxLength: 5, minLength: 1",
        "  z: string,",
        "  // minimum: 0",
        "  // Default: 3",
        "  b?: number,",
        "  // pick",
        '  c?: "x" | 2 | None,',
        '  // Default: "é"',
        "  d?: string | null,",
        "  // Default: True",
        "  e?: boolean | Array<any>,",
        "  o?: {",
        "    k?: any,",
        "    [k: string]: number",
        "  },",
        "  t?: any,",
        "  [k: string]: never",
        "}) => any;",
    )


def test_definitions_and_references_to_itself() -> None:
    node = {"type": "object", "description": "a node", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    defined = tool({"type": "object", "$defs": {"Node": node}, "properties": {"n": {"$ref": "#/$defs/Node"}}})
    itself = tool({"type": "object", "properties": {"deeper": {"$ref": "#", "description": "again"}}})
    assert declarations([defined, itself]) == body(
        "// a node",
        "interface Node {",
        "  next?: Node",
        "}",
        "type f = (_: {",
        "  n?: Node",
        "}) => any;",
        "interface parameters {",
        "  // again",
        "  deeper?: parameters",
        "}",
        "type f = (_: parameters) => any;",
    )


def test_no_parameters_and_no_functions() -> None:
    assert declarations([tool({})]) == body("type f = (_: {}) => any;")
    assert declarations([{"type": "_plugin"}]) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Absent"},
        {"$ref": "http://elsewhere"},
        {"description": "of no type"},
        {"type": "string", "enum": [1]},
        {"type": ["string", "integer", "null"], "enum": ["a"]},
        {"type": ["string", "tuple"]},
        ["no schema"],
    ],
)
def test_what_cannot_be_written_is_left_to_json(schema: Any) -> None:
    given = [tool({"type": "object", "properties": {"p": schema}})]
    assert declarations(given) is None
    template = ChatTemplate("{{ tools_ts_str if tools_ts_str is defined else tools | tojson }}", {}, sorts_tools=True)
    assert template.render([{"role": "user", "content": "Hi"}], tools=given).startswith('[{"function"')


def test_a_template_is_given_them_if_it_asks() -> None:
    source = "{%- if tools_ts_str -%}{{ tools_ts_str }}{%- endif -%}{{ messages[0].content }}"
    messages, given = [{"role": "user", "content": "Hi"}], [tool({})]
    assert ChatTemplate(source, {}).render(messages, tools=given) == body("type f = (_: {}) => any;") + "Hi"
    assert ChatTemplate(source, {}).render(messages) == "Hi"
