"""The calls of a whole text, as the parser finds them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from outpace.models.text.tool_calls import CallArguments, CallStart, Content, ToolCallParser, ToolEvent
from outpace.models.text.tool_formats import ToolFormat


class ToolCall(NamedTuple):
    """Of a function; the arguments are a JSON object."""

    name: str
    arguments: str


def parse_tool_calls(
    text: str, form: ToolFormat, names: Collection[str] | None = None
) -> tuple[str, tuple[ToolCall, ...]]:
    """An answer's content and its calls; what is no well-formed call stays in the content."""
    parser = ToolCallParser(form, names, early=False)
    return calls_of(parser.push(text) + parser.finish())


def calls_of(events: Sequence[ToolEvent]) -> tuple[str, tuple[ToolCall, ...]]:
    """The same of what a parser told, no part of a call in several pieces."""
    names = {event.index: event.name for event in events if isinstance(event, CallStart)}
    arguments = {event.index: event.text for event in events if isinstance(event, CallArguments)}
    content = "".join(event.text for event in events if isinstance(event, Content))
    return content, tuple(ToolCall(names[index], arguments[index]) for index in names)
