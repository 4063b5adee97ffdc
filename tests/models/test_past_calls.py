"""Past tool calls as OpenAI's clients send them reach templates as objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.test_chat_tools import CALLING, TOLD, USER, WEATHER, render
from models.tool_templates import TOOL_TEMPLATES
from outpace.errors import RequestError
from outpace.models.text.past_calls import with_argument_objects, with_numbered_ids


def calling(arguments: Any) -> dict[str, Any]:
    (call,) = CALLING["tool_calls"]
    return {**CALLING, "tool_calls": [{**call, "function": {**call["function"], "arguments": arguments}}]}


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_they_are_rendered_as_objects_are(name: str) -> None:
    sent = [USER, calling(json.dumps({"city": "Köln", "days": [1]})), TOLD]
    source = TOOL_TEMPLATES[name]
    expected = render(source, [USER, CALLING, TOLD], tools=[WEATHER])
    assert render(source, with_argument_objects(sent), tools=[WEATHER]) == expected


def test_what_needs_no_reading_is_left_alone() -> None:
    messages: list[Any] = [USER, CALLING, TOLD, {"role": "assistant", "tool_calls": [None, {"function": "f"}]}, "x"]
    assert with_argument_objects(messages) == messages
    assert with_argument_objects([calling("")]) == [calling({})]


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(RequestError, match=r"messages\[1\] calls a tool with .* must be a JSON object"):
        with_argument_objects([USER, calling(arguments)])


def test_calls_are_numbered_through_the_conversation() -> None:
    (call,) = CALLING["tool_calls"]
    twice = {**CALLING, "tool_calls": [{**call, "id": "a"}, {"type": "function", "function": {"name": "time"}}]}
    messages: list[Any] = [USER, CALLING, TOLD, twice, {"role": "tool", "tool_call_id": "a", "content": "x"}, "x"]
    told = with_numbered_ids(messages)
    assert [[part["id"] for part in told[place]["tool_calls"]] for place in (1, 3)] == [
        ["functions.weather:0"],
        ["functions.weather:1", "functions.time:2"],
    ]
    assert [told[place]["tool_call_id"] for place in (2, 4)] == ["functions.weather:0", "functions.weather:1"]
    assert (told[0], told[5], CALLING["tool_calls"][0]["id"]) == (USER, "x", "abc123def")
    odd: list[Any] = [{"role": "assistant", "tool_calls": [None, {"function": "f"}]}, {"role": "tool"}, TOLD]
    assert with_numbered_ids(odd) == odd
    assert with_numbered_ids(told) == told
