"""Tool calls in a conversation's past: as clients of OpenAI's API write them → as chat templates read them."""

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
