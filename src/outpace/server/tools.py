"""The tools of one request: whether they can be offered, how calls of them are spelled, what a forced one must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.config import SamplingParams
from outpace.errors import ConfigError
from outpace.models.text.tool_calls import MAX_CALLS
from outpace.models.text.tool_formats import FORMATS, ToolFormat, tool_format
from outpace.server.api_errors import ApiError
from outpace.server.conversation import ChosenTool, Tool
from outpace.server.protocol import ChatRequest

FORCED = ToolFormat(name="forced", opening="[", closing="]", separator=",")
"""How calls come under `call_schema`, whatever the model's own spelling: a JSON list of them and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Tools that the model may call."""

    form: ToolFormat
    """How its calls are spelled."""
    tools: tuple[dict[str, Any], ...]
    """As the chat template takes them."""
    names: frozenset[str]
    most_calls: int
    """Further ones are not told."""
    schema: dict[str, Any] | None = None
    """What the whole answer must be, spelled as `FORCED`; None leaves it to the model whether it calls."""


def resolve_format(parser: str, chat_template: str | None) -> ToolFormat | None:
    """The spelling that a server reads: the named one, or for "auto" that of the chat template, None without one.

    Raises:
        ConfigError: one is named, and the model would not be told of any tools.
    """
    if parser == "auto":
        return tool_format(chat_template)
    if "tools" not in (chat_template or ""):
        raise ConfigError(
            f"tool_parser is {parser!r}, but the model's chat template does not show it any tools: leave tool_parser "
            "out, or bring a template that does"
        )
    return FORMATS[parser]


def offer_of(asked: ChatRequest, form: ToolFormat | None) -> Offer | None:
    """What may be called; None if nothing. Tools that are not to be called are not shown to the model.

    Raises:
        ApiError: what is asked for contradicts itself, or is not possible here.
    """
    if asked.tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(asked, name) not in (None, "none"):
                raise _refused(f"{name} needs tools: give them, or leave it out", name)
        return None
    _check_tools(asked.tools)
    choice = "auto" if asked.tool_choice is None else asked.tool_choice
    if isinstance(choice, ChosenTool):
        _check_named(choice, asked.tools)
    if choice == "none":
        return None
    if form is None:
        raise _refused(
            "the model's chat template teaches no tool calls that this server reads "
            f"({', '.join(FORMATS)}): leave tools out; if the model does write one of these, see --tool-parser",
            "tools",
        )
    most_calls = 1 if asked.parallel_tool_calls is False else MAX_CALLS
    named = choice if isinstance(choice, ChosenTool) else None
    return Offer(
        form=form if choice == "auto" else FORCED,
        tools=tuple(tool.plain() for tool in asked.tools),
        names=frozenset(tool.function.name for tool in asked.tools),
        most_calls=most_calls,
        schema=None if choice == "auto" else call_schema(asked.tools, named, most_calls),
    )


def params_under(params: SamplingParams, offer: Offer | None) -> SamplingParams:
    """Parameters with which the answer is what the offer demands.

    Raises:
        ApiError: it demands calls, and nothing here can hold a model to that yet.
    """
    if offer is None or offer.schema is None:
        return params
    raise _refused('tool_choice may be "none" or "auto": forcing a call needs a grammar', "tool_choice")


def call_schema(tools: Sequence[Tool], choice: ChosenTool | None, most_calls: int) -> dict[str, Any]:
    """The JSON schema of an answer that must be calls, spelled as `FORCED`.

    Args:
        tools: what there is.
        choice: the one to be called; None leaves it to the model.
        most_calls: how many there may be; there is at least one.
    """
    named = [tool for tool in tools if choice is None or tool.function.name == choice.function.name]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": {"type": "object"} if tool.function.parameters is None else tool.function.parameters,
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in named
    ]
    return {"type": "array", "minItems": 1, "maxItems": 1 if choice else most_calls, "items": {"anyOf": calls}}


def _check_tools(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for place, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            raise _refused(f"two tools are called {name!r}; names must differ", f"tools[{place}].function.name")
        names.add(name)
        if tool.function.strict:
            raise _refused(
                "strict arguments need a grammar, which this server does not have: leave strict out",
                f"tools[{place}].function.strict",
            )


def _check_named(choice: ChosenTool, tools: Sequence[Tool]) -> None:
    name = choice.function.name
    if all(tool.function.name != name for tool in tools):
        raise _refused(f"tool_choice names {name!r:.100}, which is not among tools", "tool_choice")


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
