"""Past tool calls as OpenAI's clients send them reach templates as objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.test_chat_tools import CALLING, TOLD, USER, WEATHER, render
from models.tool_templates import TOOL_TEMPLATES
from outpace.errors import RequestError
from outpace.models.text.past_calls import with_argument_objects, with_named_texts, with_numbered_ids


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


BROKEN = ['{"city": "Kö', "[1]", "5", '"x"', "{'city': 1}", "[" * 10_000]


@pytest.mark.parametrize("arguments", BROKEN)
@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_arguments_that_are_no_object_are_shown_as_they_were_written(name: str, arguments: str) -> None:
    """Not quoted, which the model would take for the way to write them; but for Mistral's, which prints calls whole."""
    source = TOOL_TEMPLATES[name]
    empty, other, told = (
        render(source, with_argument_objects([USER, calling(said), TOLD]), tools=[WEATHER])
        for said in ("", '{"a": 1}', arguments)
    )
    head, _, tail = other.rpartition('{"a": 1}')
    shown = json.dumps(arguments, ensure_ascii=False) if name == "mistral" else arguments
    assert told == (empty if other == empty else head + shown + tail), "some show no calls at all"


BY_NAME = """
{%- for message in messages %}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.arguments ITEMS }};
    {%- endfor %}
{%- endfor %}"""


@pytest.mark.parametrize("items", [".items() | list", "| items | list", "| dictsort"])
def test_templates_that_go_through_arguments_are_told_a_name(items: str) -> None:
    messages = with_argument_objects([USER, calling('{"city": "K'), calling('{"city": "B"}'), calling("")])
    source = BY_NAME.replace("ITEMS", items)
    with pytest.raises(RequestError, match="do not fit the model's chat template"):
        render(source, messages)
    named = [("arguments", '{"city": "K')], [("city", "B")], []
    assert render(source, with_named_texts(messages)) == "".join(f"{each};" for each in named)


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
