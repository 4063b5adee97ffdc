"""Tool calls in a conversation's past: as clients of OpenAI's API write them → as templates and models read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outpace.models.text.chat_sandbox import Verbatim
from outpace.models.text.chat_template import Message


def with_argument_objects(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the arguments of past calls as objects: clients send JSON texts, which templates would quote.

    A text that is no JSON object stays as it was written: a model can write one, or be cut off in it, and the client
    sends it again with every turn, so refusing it would be the end of the conversation. Templates that print arguments
    show it as the model wrote it. Whatever else there is stays as it is; `ChatTemplate.render` judges it.
    """
    return _with_arguments(messages, _read)


def with_named_texts(messages: Sequence[Message]) -> list[Message]:
    """The same for a template that goes through arguments by name: such a text becomes the only one."""
    return _with_arguments(messages, lambda said: {"arguments": str(said)} if isinstance(said, Verbatim) else said)


def _with_arguments(messages: Sequence[Message], told: Callable[[Any], Any]) -> list[Message]:
    return [
        {**message, "tool_calls": [_called(call, told) for call in message["tool_calls"]]}
        if isinstance(message, Mapping) and isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
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


def _called(call: Any, told: Callable[[Any], Any]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    return {**call, "function": {**function, "arguments": told(function["arguments"])}}


def _read(said: Any) -> Any:
    if not isinstance(said, str):
        return said
    try:
        arguments = json.loads(said) if said.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else Verbatim(said)
