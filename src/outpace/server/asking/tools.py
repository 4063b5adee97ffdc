"""The tools of one request: whether they can be offered, and what their calls hold an answer to.

Calls are held to the schemas of their tools where one is forced and where a tool is `strict`; a forced call to the
schema of every tool, strict or not. Where the answer is to be JSON, and tools are offered beside it, it is either calls
or that JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outpace.config import SamplingParams
from outpace.errors import ConfigError, RequestError
from outpace.models.text.tool_calls import MAX_CALLS
from outpace.models.text.tool_formats import FORMATS, ToolFormat, tool_format
from outpace.schema_keywords import check_schema
from outpace.server.asking.call_grammar import CallGrammar, SpecialId, place_of_line
from outpace.server.asking.conversation import ChosenTool, Tool
from outpace.server.asking.protocol import ChatRequest
from outpace.server.http.api_errors import ApiError

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A tool that an answer may call."""

    name: str
    field: str
    """Of the request, where its parameters stand."""
    schema: dict[str, Any] | None
    """That its arguments are held to; None if they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Tools that the model may call."""

    form: ToolFormat
    """How its calls are spelled."""
    tools: tuple[dict[str, Any], ...]
    """As the chat template takes them."""
    called: tuple[Called, ...]
    most_calls: int
    """Further ones are not told."""
    forced: bool
    """The answer is to be calls."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.called)

    def told(self) -> Offer:
        """The same once prompt and grammar are made of it: what is needed of it while its answer is told."""
        called = tuple(replace(tool, schema=None if tool.schema is None else {}) for tool in self.called)
        return replace(self, tools=(), called=called)


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
    if not asked.tools:
        if asked.tool_choice not in (None, "none", "auto"):
            raise _refused("tool_choice forces a call, which needs tools: give them, or leave it out", "tool_choice")
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
    named = isinstance(choice, ChosenTool)
    forced = choice != "auto"
    return Offer(
        form=form,
        tools=tuple(tool.plain() for tool in asked.tools),
        called=tuple(
            _called(tool, f"tools[{place}].function.parameters", held=forced or bool(tool.function.strict))
            for place, tool in enumerate(asked.tools)
            if not isinstance(choice, ChosenTool) or tool.function.name == choice.function.name
        ),
        most_calls=1 if named or asked.parallel_tool_calls is False else MAX_CALLS,
        forced=forced,
    )


def params_under(params: SamplingParams, offer: Offer | None, special_id: SpecialId) -> SamplingParams:
    """Parameters with which the answer is what the offer demands.

    Raises:
        ApiError: something else that was asked for contradicts it, or it is too much for a grammar.
    """
    if offer is None:
        return params
    other = params.grammar
    if offer.forced and other is not None:
        raise _refused(
            "tool_choice forces a call, which leaves no room for response_format or structured_outputs: leave them out",
            "tool_choice",
        )
    if other is not None and other.kind != "json_schema":
        raise _refused(
            f"a {other.kind} and tools exclude each other, for only JSON can be offered beside calls: "
            'leave one out, or set tool_choice to "none"',
            "structured_outputs",
        )
    if not (offer.forced or other or any(tool.schema is not None for tool in offer.called)):
        return params
    calls = [(tool.name, tool.schema or ANY_ARGUMENTS) for tool in offer.called]
    rules = CallGrammar(offer.form, calls, offer.most_calls, special_id)
    try:
        if other is not None:
            return replace(params, grammar=rules.or_json(json.loads(other.source)))
        return replace(params, grammar=rules.forced() if offer.forced else rules.free())
    except RequestError as error:
        raise _refused(f"tools: as a grammar they are too large: {error}", "tools") from error


def blamed(error: RequestError, offer: Offer | None) -> ApiError | None:
    """The tool whose parameters a grammar could not be made of; None if it is none's fault."""
    found = re.match(r"grammar: at (\d+)\(", str(error))
    place = -1 if offer is None or found is None else place_of_line(int(found[1]))
    if offer is None or not 0 <= place < len(offer.called):
        return None
    tool = offer.called[place]
    return None if tool.schema is None else _unfit(tool.name, tool.field, str(error))


def _called(tool: Tool, field: str, *, held: bool) -> Called:
    """Arguments that are held to nothing may be any object.

    Raises:
        ApiError: they are to be held to what no grammar honours.
    """
    name, parameters = tool.function.name, tool.function.parameters
    if not held:
        return Called(name=name, field=field, schema=None)
    schema = ANY_ARGUMENTS | (parameters or {})
    if schema["type"] != "object":
        raise _unfit(name, field, f'their type is {schema["type"]!r:.60}; it must be "object"')
    try:
        check_schema(schema)
    except RequestError as error:
        raise _unfit(name, field, str(error)) from error
    return Called(name=name, field=field, schema=schema)


def _check_tools(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for place, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            raise _refused(f"two tools are called {name!r}; names must differ", f"tools[{place}].function.name")
        names.add(name)


def _check_named(choice: ChosenTool, tools: Sequence[Tool]) -> None:
    name = choice.function.name
    if all(tool.function.name != name for tool in tools):
        raise _refused(f"tool_choice names {name!r:.100}, which is not among tools", "tool_choice")


def _unfit(name: str, field: str, said: str) -> ApiError:
    remedy = 'without strict, and with tool_choice "auto", they are not enforced'
    return _refused(f"calls of the tool {name!r} cannot be held to its parameters: {said} ({remedy})", field)


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
