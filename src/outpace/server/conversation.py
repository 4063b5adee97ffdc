"""Conversations as clients send them: messages by role, with past tool calls, and the tools that may be called."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from outpace.models.text.chat_template import MAX_TOOLS
from outpace.models.text.tool_calls import MAX_CALLS
from outpace.server.strict import FIRST_ERROR, Name, Strict

MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_SCHEMA_BYTES = 64 << 10
"""Of one function's parameters, as JSON."""
MAX_SCHEMA_DEPTH = 24
MAX_DESCRIPTION = 16 << 10


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS), FIRST_ERROR]


class SpokenMessage(Strict):
    role: Literal["system", "developer", "user"]
    content: Content
    name: Name | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates take it; so have all messages."""
        return _plain(self.role, self.content, name=self.name)


class PastFunction(Strict):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    """A JSON object, as a text."""


class PastCall(Strict):
    id: Name
    type: Literal["function"] = "function"
    function: PastFunction


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[PastCall], Field(min_length=1, max_length=MAX_CALLS)] | None = None
    refusal: None = None
    """Null, as in this server's own answers, which clients send back as they came."""

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and self.tool_calls is None:
            raise ValueError("an assistant's message needs content or tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        calls = None if self.tool_calls is None else [call.model_dump() for call in self.tool_calls]
        return _plain(self.role, self.content, name=self.name, tool_calls=calls)


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    name: Name | None = None

    def plain(self) -> dict[str, Any]:
        return _plain(self.role, self.content, name=self.name, tool_call_id=self.tool_call_id)


ChatMessage = Annotated[SpokenMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_ERROR]


def _plain(role: str, content: Content | None, **others: Any) -> dict[str, Any]:
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    message = {"role": role, "content": content, **others}
    return {key: value for key, value in message.items() if value is not None}


class Function(Strict):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of its arguments; none takes any object."""
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _is_bounded(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        if _depth(schema) > MAX_SCHEMA_DEPTH:
            raise ValueError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep; make it flatter")
        try:
            size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
        except ValueError as error:  # NaN, or lone surrogates
            raise ValueError(f"the schema is no JSON: {error}") from error
        if size > MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are taken")
        return schema


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        return self.model_dump(exclude_none=True)


Tools = Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)]


class ChosenFunction(Strict):
    name: Name


class ChosenTool(Strict):
    """`{"type": "function", "function": {"name": …}}`: this one is to be called."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


def _depth(value: Any) -> int:
    """Objects and lists within each other, level by level: a body may be nested deeper than Python recurses."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth
