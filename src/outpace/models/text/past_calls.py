"""Tool calls in a conversation's past: as clients of OpenAI's API write them → as templates and models read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.errors import RequestError
from outpace.models.text.chat_template import Message


def with_argument_objects(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the arguments of past calls as objects: clients send JSON texts, which templates would quote.

    Whatever else there is stays as it is; `ChatTemplate.render` judges it.

    Raises:
        RequestError: arguments are a text that is no JSON object.
    """
    return [
        {**message, "tool_calls": [_read(call, place) for call in message["tool_calls"]]}
        if isinstance(message, Mapping) and isinstance(message.get("tool_calls"), list)
        else message
        for place, message in enumerate(messages)
    ]


def with_numbered_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the ids that Kimi-K2 was taught: functions.NAME:0, counted through the conversation.

    Clients and servers make up other ids, which it takes for a spelling of calls and repeats. Results are renamed with
    their calls. Whatever else there is stays as it is.
    """
    renamed: dict[Any, str] = {}
    count = 0
    found: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if isinstance(calls, list) and all(_is_named(call) for call in calls):
            ids = [f"functions.{call['function']['name']}:{count + place}" for place, call in enumerate(calls)]
            pairs = list(zip(calls, ids, strict=True))
            renamed |= {call["id"]: new for call, new in pairs if isinstance(call.get("id"), str)}
            count += len(calls)
            message = {**message, "tool_calls": [{**call, "id": new} for call, new in pairs]}
        elif isinstance(message, Mapping) and isinstance(message.get("tool_call_id"), str):
            message = {**message, "tool_call_id": renamed.get(message["tool_call_id"], message["tool_call_id"])}
        found.append(message)
    return found


def _is_named(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _read(call: Any, place: int) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    text = function["arguments"]
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"messages[{place}] calls a tool with {text!r:.60}; arguments must be a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}
