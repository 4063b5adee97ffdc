"""Conversations as clients send them: messages by role, with past tool calls, and the tools that may be called."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from outpace.models.text.chat_template import MAX_TOOLS
from outpace.models.text.tool_calls import MAX_CALLS
from outpace.server.asking.strict import FIRST_ERROR, Name, Strict

MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_ARGUMENTS = 1 << 20
"""Characters of a past call's arguments, which are read as JSON."""
MAX_JSON_BYTES = 64 << 10
"""Of one function's parameters, or of a template's variables, as JSON."""
MAX_JSON_DEPTH = 24
MAX_DESCRIPTION = 16 << 10


class Hinted(Strict):
    cache_control: dict[str, Any] | None = None
    """Anthropic's hint to keep a prefix, which is done anyway."""


class TextPart(Hinted):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS), FIRST_ERROR]


class SpokenMessage(Hinted):
    role: Literal["system", "developer", "user"]
    content: Content
    name: Name | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates take it; so have all messages."""
        return _plain(self.role, self.content, name=self.name)


class PastFunction(Strict):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_ARGUMENTS)] = ""
    """A JSON object, as a text; nothing is an empty one. What is none is shown to the model as it is: it wrote it."""


class PastCall(Strict):
    id: Name
    type: Literal["function"] = "function"
    function: PastFunction
    index: int | None = None
    """Of a streamed call, left in by clients that put calls together; their order counts."""


class AssistantMessage(Hinted):
    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[PastCall], Field(max_length=MAX_CALLS)] | None = None
    reasoning_content: str | None = None
    """What the model thought before: templates of models that reason read it, or leave it out."""
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    """As OpenAI's own answers have it, which clients send back as they came."""

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("an assistant's message needs content or tool_calls")
        return self

    def plain(self) -> dict[str, Any]:
        calls = [call.model_dump(exclude={"index"}) for call in self.tool_calls or ()] or None
        return _plain(
            self.role, self.content, name=self.name, reasoning_content=self.reasoning_content, tool_calls=calls
        )


class ToolMessage(Hinted):
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


def _check_bounds(value: dict[str, Any]) -> dict[str, Any]:
    if _depth(value) > MAX_JSON_DEPTH:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep; make it flatter")
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except ValueError as error:  # NaN, or lone surrogates
        raise ValueError(f"it is no JSON: {error}") from error
    if size > MAX_JSON_BYTES:
        raise ValueError(f"it has {size} bytes; at most {MAX_JSON_BYTES} are taken")
    return value


BoundedJson = Annotated[dict[str, Any], AfterValidator(_check_bounds)]
"""An object that templates and grammars are given as it came."""


class Function(Strict):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    parameters: BoundedJson | None = None
    """A JSON schema of its arguments; none takes any object."""
    strict: bool | None = None


class Tool(Hinted):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        return self.model_dump(exclude_none=True, exclude={"cache_control"})


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
"""None of them is the same as no list."""


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
