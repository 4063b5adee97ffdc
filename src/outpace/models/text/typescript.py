"""Tools as declarations in the manner of TypeScript, which Kimi-K2.5's chat template takes as `tools_ts_str`.

    # Tools

    ## functions
    namespace functions {
    // What the function is for.
    type name = (_: {
      // What it is.
      // maxLength: 5, minLength: 1
      needed: string,
      // Default: 3
      optional?: number
    }) => any;
    }

Required properties come first, each kind by name. A schema that refers to definitions, or to itself, gets interfaces
before its function. Source: moonshotai's Kimi-K2.5 on the hub, `tool_declaration_ts.py`, written anew from what that
does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_STEP = "  "
_UNIONS = {
    "string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null", "object": "{}",
    "array": "Array<any>",
}  # fmt: skip
_CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_MEMBERS: dict[object, type | tuple[type, ...]] = {
    "string": str, "number": (int, float), "integer": int, "boolean": bool,
}  # fmt: skip


def declarations(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The declarations of functions; None if a schema cannot be written so, and the template is to show JSON."""
    functions = [tool["function"] for tool in tools if tool.get("type") == "function" and tool.get("function")]
    if not functions:
        return None
    try:
        written = "\n".join(map(_function, functions))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return f"# Tools\n\n## functions\nnamespace functions {{\n{written}\n}}\n"


def _function(function: Mapping[str, Any]) -> str:
    writer, parameters = _Writer(), function.get("parameters") or {}
    taken = writer.object(parameters, "")
    lines = []
    if writer.refers_to_itself:
        fields = ",\n".join(field for _, _, field in writer.fields(parameters, _STEP))
        lines.append(f"interface parameters {{\n{fields}\n}}" if fields else "interface parameters {}")
        taken = "parameters"
    for name, schema in list(writer.definitions.items()):
        lines += _comment(schema.get("description"), "")
        lines.append(f"interface {name} {writer.type(schema, '')}")
    lines += _comment(function.get("description"), "")
    return "\n".join([*lines, f"type {function.get('name', 'function')} = (_: {taken}) => any;"])


class _Writer:
    """Writes one function's schemas."""

    def __init__(self) -> None:
        self.definitions: dict[str, Mapping[str, Any]] = {}
        self.refers_to_itself = False

    def type(self, schema: Any, indent: str) -> str:
        """What stands behind a name. Raises ValueError and others: it cannot be written."""
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self.type(each, indent) for each in schema["anyOf"])
        if "enum" in schema:
            return _enum(schema)
        if schema == {}:
            return "any"
        kind = schema["type"]
        if isinstance(kind, list):
            return " | ".join(_UNIONS[each] for each in kind)
        if kind == "object":
            return self.object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        return "number" if kind == "integer" else str(kind)

    def object(self, schema: Mapping[str, Any], indent: str) -> str:
        self.definitions |= schema.get("$defs") or {}
        others = schema.get("additionalProperties")
        kind = "any" if others is True else "never" if others is False else None
        if others is not None and kind is None:
            kind = self.type(others, indent + _STEP)
        fields = [field for *_, field in sorted(self.fields(schema, indent + _STEP), key=lambda field: field[:2])]
        if kind is not None:
            fields.append(f"{indent}{_STEP}[k: string]: {kind}")
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"

    def fields(self, schema: Mapping[str, Any], indent: str) -> Iterator[tuple[bool, str, str]]:
        """Whether each property is optional, its name, and what is written for it."""
        required = schema.get("required") or []
        for name, inner in (schema.get("properties") or {}).items():
            optional = name not in required
            lines = [*_docs(inner, indent), *_default(inner, indent)]
            lines.append(f"{indent}{name}{'?' if optional else ''}: {self.type(inner, indent)}")
            yield optional, name, "\n".join(lines)

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        items = schema.get("items") or {}
        if docs := _docs(items, indent + _STEP):
            inner = self.type(items, indent + _STEP)
            return "\n".join(("Array<", *docs, f"{indent}{_STEP}{inner}", f"{indent}>"))
        return f"Array<{self.type(items, indent)}>"

    def _reference(self, name: str) -> str:
        if name == "#":
            self.refers_to_itself = True
            return "parameters"
        last = name.rpartition("/")[2]
        if not name.startswith("#/$defs/") or last not in self.definitions:
            raise ValueError(f"{name} is not defined")
        return last


def _comment(text: str | None, indent: str) -> list[str]:
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def _docs(schema: Any, indent: str) -> list[str]:
    """A description, and what numbers, texts and lists are bounded by."""
    if isinstance(schema, bool):
        return []
    lines = _comment(schema.get("description"), indent)
    kind = None if any(key in schema for key in ("$ref", "anyOf", "enum")) else schema.get("type")
    names = _CONSTRAINTS.get(kind, ()) if isinstance(kind, str) else ()
    if bounds := [f"{name}: {schema[name]}" for name in names if name in schema]:
        lines.append(f"{indent}// {', '.join(bounds)}")
    return lines


def _default(schema: Any, indent: str) -> list[str]:
    value = schema.get("default") if isinstance(schema, dict) else None
    if value is None:
        return []
    shown = repr(value) if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)
    return [f"{indent}// Default: {shown}"]


def _enum(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        real = [each for each in kind if each != "null"] if len(kind) == 2 else kind
        if len(real) != 1:
            raise ValueError(f"an enum of {kind}")
        kind = real[0]
    member = _MEMBERS.get(kind, object)
    if not all(value is None or isinstance(value, member) for value in schema["enum"]):
        raise ValueError(f"an enum that is not of {kind}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])
