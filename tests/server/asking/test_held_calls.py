"""Calls that are held to their tools' schemas, forced or strict, as the `openai` package sees them.

The model wants to say a little and then to call a function with arguments that do not fit. Its tags are special tokens
in one of its two forms, and ordinary ones in the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import openai
import pytest
import torch

from outpace import SamplingParams
from outpace.models.text.tool_formats import HERMES, KIMI
from outpace.server.asking.tools import Called, Offer, params_under
from outpace.server.http.api_errors import ApiError
from server.asking.test_structured import SPACES
from server.asking.test_tools import TAGS, TEMPLATE, streamed
from server.chain import END, make_chain, make_chain_drafter
from server.running import Server, serving

CHAINS = (
    ["?", "Let me see.\n", TAGS[0], '\n{"name": "weather", ', '"arguments": ', '{"city": ', '"Bonn"', ', "days": 9}']
    + ["}\n", TAGS[1], END],
    [".", "It is ", "sunny ", "today", END],
)
WANTED = {"city": "Bonn", "days": 9}
CITY = {
    "type": "object",
    "$defs": {"City": {"enum": ["Oslo", "Köln"]}},
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ZONE = {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 3}}, "additionalProperties": False}
SCHEMAS = {"weather": CITY, "clock": ZONE}
SHAPE = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": {"name": "shape", "schema": SHAPE, "strict": True}}


def tools(strict: bool | None = None) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def asked(last: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"How is it{last}"}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 120, "tools": tools()}
    return body | options | {"logit_bias": SPACES | options.get("logit_bias", {})}


@pytest.fixture(scope="module", params=["special", "ordinary"])
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(f"caller_{request.param}")
    special = TAGS if request.param == "special" else ()
    torch.manual_seed(5)
    follows = make_chain(folder / "model", CHAINS, special=special, template=TEMPLATE)
    make_chain_drafter(folder / "model", folder / "drafter", follows, wrong_behind=())
    flags = ("--drafter", str(folder / "drafter"), "--control", "fixed", "--k", "3", "--num-pages", "300")
    with serving(folder / "model", *flags, "--dtype", "float32") as running:
        yield running
        assert running.held_pages() == 0 and running.state()["engine_deaths"] == 0


@dataclass(frozen=True)
class Told:
    """An answer, the same whole and as a stream, with drafts and without."""

    content: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    num_tokens: int

    def check(self) -> None:
        """The arguments are what their tool's parameters admit."""
        for name, arguments in self.calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def tell(server: Server, last: str, **options: Any) -> Told:
    """The answer without drafts, with them, and as a stream."""
    found: list[Told] = []
    create = server.client().chat.completions.create
    for policy in ("off", "auto"):
        body = asked(last, **options) | {"extra_body": {"speculation": policy}}
        whole = create(**body)
        message = whole.choices[0].message
        calls = tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ())
        found.append(Told(message.content or "", calls, whole.choices[0].finish_reason, whole.usage.completion_tokens))
    chunks = list(create(**body, stream=True, stream_options=USAGE))
    content, parts, reason = streamed(chunks[:-1])
    calls = tuple((part["name"], part["arguments"]) for part in parts)
    found.append(Told(content, calls, reason or "", chunks[-1].usage.completion_tokens))
    assert len(set(found)) == 1, found
    return found[0]


USAGE = {"include_usage": True}


@pytest.mark.parametrize(("last", "temperature"), [("?", 0.0), (".", 1.0)])
def test_a_required_call_is_made_and_fits(caller: Server, last: str, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 4}
    told = tell(caller, last, tool_choice="required", parallel_tool_calls=False, **options)
    assert (told.content, told.reason, len(told.calls)) == ("", "tool_calls", 1)
    told.check()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_named_function_is_called_once(caller: Server, name: str) -> None:
    told = tell(caller, ".", tool_choice=named(name))
    ((called, _),) = told.calls
    assert (called, told.content, told.reason) == (name, "", "tool_calls")
    told.check()


def test_several_calls_are_made_where_they_may_be(caller: Server) -> None:
    """The model would end behind its call, but is kept from ending."""
    end = caller.post("/tokenize", {"prompt": END}).json()["tokens"][0]
    options = {"tool_choice": "required", "logit_bias": {str(end): -100}, "max_tokens": 150}
    body = asked("?", **options)
    message = caller.client().chat.completions.create(**body).choices[0].message
    assert len(message.tool_calls) > 1
    Told("", tuple((c.function.name, c.function.arguments) for c in message.tool_calls), "", 0).check()


def test_strict_leaves_text_alone(caller: Server) -> None:
    told = tell(caller, ".", tools=tools(strict=True))
    assert (told.content, told.calls, told.reason) == ("It is sunny today", (), "stop")
    assert told == tell(caller, ".")


@pytest.mark.parametrize("parallel", [None, False])
def test_strict_calls_fit_and_others_are_as_they_were(caller: Server, parallel: bool | None) -> None:
    free = tell(caller, "?", parallel_tool_calls=parallel)
    assert (free.content, free.reason) == ("Let me see.", "tool_calls")
    assert [json.loads(arguments) for _, arguments in free.calls] == [WANTED]
    beside = tell(caller, "?", tools=[tools()[0], tools(strict=True)[1]], parallel_tool_calls=parallel)
    assert (beside.content, beside.calls, beside.reason) == (free.content, free.calls, free.reason)
    assert beside.num_tokens == free.num_tokens - (parallel is False)  # the end needs no token
    told = tell(caller, "?", tools=tools(strict=True), parallel_tool_calls=parallel)
    assert told.content.startswith("Let me see.") and told.reason == "tool_calls"
    ((name, _),) = told.calls
    assert name == "weather"
    told.check()


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same in Kimi's spelling: a section of numbered calls, all of whose tags are special tokens."""
    folder = tmp_path_factory.mktemp("kimi")
    begin, call, arguments, call_end, end = KIMI.special
    chain = ["?", "Let me see.", begin, call, "functions.weather:", "0", arguments, '{"city": ', '"Bonn"', "}"]
    torch.manual_seed(5)
    chains = ([*chain, call_end, end, END], CHAINS[1])
    follows = make_chain(folder / "model", chains, special=KIMI.special, template=TEMPLATE)
    make_chain_drafter(folder / "model", folder / "drafter", follows, wrong_behind=())
    flags = ("--drafter", str(folder / "drafter"), "--control", "fixed", "--k", "3", "--num-pages", "300")
    with serving(folder / "model", *flags, "--tool-parser", "kimi") as running:
        yield running
        assert running.held_pages() == 0 and running.state()["engine_deaths"] == 0


def test_kimis_calls_are_held_too(kimi: Server) -> None:
    free = tell(kimi, "?")
    assert (free.content, free.calls, free.reason) == ("Let me see.", (("weather", '{"city": "Bonn"}'),), "tool_calls")
    strict = tell(kimi, "?", tools=tools(strict=True))
    assert (strict.content, strict.reason, len(strict.calls)) == ("Let me see.", "tool_calls", 1)
    text = tell(kimi, ".", tools=tools(strict=True))
    assert (text.content, text.calls, text.reason) == ("It is sunny today", (), "stop")
    required = tell(kimi, ".", tool_choice="required", parallel_tool_calls=False)
    one = tell(kimi, ".", tool_choice=named("clock"))
    assert one.calls[0][0] == "clock"
    for told in (strict, required, one):
        told.check()
        assert told.reason == "tool_calls" and len(told.calls) == 1


@pytest.mark.parametrize("wanted", ["call", "JSON"])
def test_an_answer_in_json_may_be_calls_instead(caller: Server, wanted: str) -> None:
    opening = TAGS[0] if wanted == "call" else '{"'
    token = caller.post("/tokenize", {"prompt": opening}).json()["tokens"][0]
    told = tell(caller, ".", response_format=JSON, logit_bias={str(token): 20}, parallel_tool_calls=False)
    if wanted == "call":
        assert told.content == "" and told.reason == "tool_calls" and len(told.calls) == 1
    else:
        assert told.calls == () and told.reason == "stop"
        jsonschema.validate(json.loads(told.content), SHAPE)


def tool(**parameters: Any) -> list[dict[str, Any]]:
    strict = {"name": "odd", "strict": True, "parameters": parameters}
    return [*tools(), {"type": "function", "function": strict}]


PRIMES = (7, 11, 13, 17, 19, 23)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a keyword": (
        {"tools": tool(properties={"a": {"type": "array", "contains": {}}})},
        r"'odd' .*'contains' at #/properties/a",
        "tools[2].function.parameters",
    ),
    "what the library refuses": (
        {"tools": tool(properties={"a": {"type": "string", "pattern": "(?=a)b"}})},
        r"'odd' .*look-?a",
        "tools[2].function.parameters",
    ),
    "what takes the library too long": (
        {"tools": tool(properties={"a": {"allOf": [{"type": "integer", "multipleOf": n} for n in PRIMES]}})},
        r"more than (2 s of a core|\d+ MiB); make it simpler",
        "tools",
    ),
    "no object": ({"tools": tool(type="string")}, r"'odd' .*'string'.*\"object\"", "tools[2].function.parameters"),
    "a form of the answer": ({"tool_choice": "required", "response_format": JSON}, r"no room", "tool_choice"),
    "a form of vLLM's": (
        {"tool_choice": named("clock"), "extra_body": {"structured_outputs": {"choice": ["a"]}}},
        r"no room",
        "tool_choice",
    ),
    "a form beside tools": (
        {"extra_body": {"structured_outputs": {"regex": "a+"}}},
        r"regex and tools exclude each other",
        "structured_outputs",
    ),
}


def test_tools_that_are_too_large_for_a_grammar_are_named() -> None:
    """A prompt that tells of so many is refused before, where the context is small."""
    schema = {"type": "object", "properties": {"x": {"enum": ["y" * 60000]}}}
    called = tuple(Called(name=f"f{i}", field=f"tools[{i}].function.parameters", schema=schema) for i in range(3))
    offer = Offer(form=HERMES, tools=(), called=called, most_calls=1, forced=True)
    with pytest.raises(ApiError, match=r"too large.*131072") as caught:
        params_under(SamplingParams(), offer, lambda tag: None)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_named(caller: Server, name: str) -> None:
    options, message, param = REFUSED[name]
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        caller.client().chat.completions.create(**asked("?", **options))
    assert caught.value.param == param
    if "tools" in options:
        forced = asked("?", **options, tool_choice=named("clock"))
        caller.client().chat.completions.create(**forced)  # the odd one cannot be called, so nothing is wrong with it
