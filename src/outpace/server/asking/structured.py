"""Answers in a given form: OpenAI's `response_format`, and `structured_outputs` as clients of vLLM send it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from outpace.errors import RequestError
from outpace.grammar import MAX_CHOICES, Grammar
from outpace.server.asking.strict import Strict


class PlainText(Strict):
    """What answers are anyway."""

    type: Literal["text"]


class AnyJson(Strict):
    """A JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A schema; it is always followed, whatever `strict` says. Name and description are the client's own."""

    name: Annotated[str, Field(max_length=512)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class SchemaJson(Strict):
    """JSON that a schema admits."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[PlainText | AnyJson | SchemaJson, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """One of: a JSON schema, any JSON object, a regular expression, one of some texts, or an EBNF grammar."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None


def of_format(form: PlainText | AnyJson | SchemaJson) -> Grammar | None:
    """The grammar of a `response_format`."""
    match form:
        case PlainText():
            return None
        case AnyJson():
            return Grammar.json_object()
        case SchemaJson(json_schema=named):
            return Grammar.json_schema(named.schema_)


def of_outputs(outputs: StructuredOutputs) -> Grammar:
    """The grammar of `structured_outputs`.

    Raises:
        RequestError: not one form is given, but none or several.
    """
    given = {name: value for name, value in outputs if value is not None and value is not False}
    if len(given) != 1:
        said = ", ".join(name.rstrip("_") for name in given) or "nothing"
        raise RequestError(f"grammar: {said} was given; give one of json, json_object, regex, choice, grammar")
    ((name, value),) = given.items()
    match name:
        case "json_":
            return Grammar.json_schema(value)
        case "json_object":
            return Grammar.json_object()
        case "regex":
            return Grammar.regex(value)
        case "choice":
            return Grammar.choice(value)
        case _:
            return Grammar.ebnf(value)
