"""Tools through the server, as the `openai` package sees them: offered, called, streamed, answered, refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx2 as httpx
import openai
import pytest

from models.tool_templates import QWEN25_TOOLS
from outpace.errors import ConfigError
from outpace.models.text.chat_template import ChatTemplate
from outpace.models.text.past_calls import with_argument_objects
from outpace.models.text.tool_formats import FORMATS, HERMES
from outpace.server.asking.conversation import MAX_JSON_BYTES
from outpace.server.asking.tools import resolve_format
from outpace.server.settings import ServerConfig, ToolParser
from server.chain import END, make_chain, make_chain_drafter
from server.running import Server, serving

TEMPLATE = QWEN25_TOOLS + "{% if add_generation_prompt %}{{ messages[-1].content[-1] }}{% endif %}"
"""What the model says depends on the last character that it was told."""
TAGS = ("<tool_call>", "</tool_call>")
CHAINS = (
    # One call, in tokens as real models write it: the tags are special tokens.
    [
        "?",
        "Let me see.\n",
        TAGS[0],
        '\n{"name": "weather", ',
        '"arguments": ',
        '{"city": ',
        ' "Köln"',
        ", ",
        '"days": 2}',
    ]
    + ["}\n", TAGS[1], END],
    # Two calls, then text.
    ["&", '<tool_call>{"name": "clock", "arguments": {}}</tool_call> ', '<tool_call>{"name": "weather", "arguments": ']
    + ['{"city"', ': "Oslo"}}', "</tool_call>\n", "That is all.", END],
    # A function that nobody offered.
    ["#", '<tool_call>{"name": "launch", ', '"arguments": {}} </tool_call>', END],
    # Arguments that break.
    ["%", '<tool_call>{"name": "clock", ', '"arguments": {"zone" ', "oops", END],
    # Text alone.
    [".", "It is ", "sunny ", "today", END],
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


def asked(last: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"How is it{last}"}]
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 40, "tools": TOOLS} | options


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that calls tools, and drafts well."""
    folder = tmp_path_factory.mktemp("caller")
    follows = make_chain(folder / "model", CHAINS, special=TAGS, template=TEMPLATE)
    make_chain_drafter(folder / "model", folder / "drafter", follows, wrong_behind=())
    flags = ("--drafter", str(folder / "drafter"), "--control", "fixed", "--k", "3", "--num-pages", "300")
    with serving(folder / "model", *flags) as running:
        yield running


def streamed(chunks: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """What a client makes of a stream: content, calls, how it ended. Checks what OpenAI promises of the pieces."""
    content, calls, reason = "", list[dict[str, str]](), None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        indices = [part.index for part in choice.delta.tool_calls or ()]
        assert len(indices) == len(set(indices))
        for part in choice.delta.tool_calls or ():
            if part.index == len(calls):
                assert part.id and part.type == "function" and part.function.name
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            else:
                assert part.id is None and part.function.name is None
            calls[part.index]["arguments"] += part.function.arguments
    return content, calls, reason


def test_a_call_is_found(caller: Server) -> None:
    answer = caller.client().chat.completions.create(**asked("?"))
    message = answer.choices[0].message
    assert message.content == "Let me see."
    (call,) = message.tool_calls
    assert call.type == "function" and call.function.name == "weather" and len(call.id) == 9
    assert json.loads(call.function.arguments) == {"city": "Köln", "days": 2}
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens == 11


@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_a_call_is_streamed_in_pieces(caller: Server, speculation: str) -> None:
    chunks = list(
        caller.client().chat.completions.create(**asked("?"), stream=True, extra_body={"speculation": speculation})
    )
    content, (call,), reason = streamed(chunks)
    assert (content, reason) == ("Let me see.", "tool_calls")
    assert call["name"] == "weather" and json.loads(call["arguments"]) == {"city": "Köln", "days": 2}
    num_pieces = sum(bool(chunk.choices[0].delta.tool_calls) for chunk in chunks)
    assert num_pieces == (4 if speculation == "off" else 2)
    assert chunks[0].choices[0].delta.role == "assistant"


def test_an_async_client_and_the_clients_own_reading_of_streams(caller: Server) -> None:
    async def read() -> Any:
        async with caller.async_client() as client, client.chat.completions.stream(**asked("&")) as stream:
            return await stream.get_final_completion()

    (choice,) = asyncio.run(read()).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["clock", "weather"]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_several_calls_or_one(caller: Server, stream: bool) -> None:
    def answer(**options: Any) -> tuple[str, list[tuple[str, str]], str | None]:
        told = caller.client().chat.completions.create(**asked("&"), stream=stream, **options)
        if stream:
            content, calls, reason = streamed(told)
            return content, [(call["name"], call["arguments"]) for call in calls], reason
        message = told.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
        return message.content or "", calls, told.choices[0].finish_reason

    both = [("clock", "{}"), ("weather", '{"city": "Oslo"}')]
    assert answer() == answer(parallel_tool_calls=True) == ("\nThat is all.", both, "tool_calls")
    assert answer(parallel_tool_calls=False) == ("\nThat is all.", both[:1], "tool_calls")


def test_tokens_of_calls_count_whether_they_are_told_or_not(caller: Server) -> None:
    def usage(**options: Any) -> dict[str, int]:
        return {
            name: caller.post("/v1/chat/completions", asked("&", **options)).json()["usage"][name]
            for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }

    body = {key: value for key, value in asked("&").items() if key in ("messages", "tools")}
    told = usage(speculation="off")
    assert told["prompt_tokens"] == caller.post("/tokenize", body).json()["count"]
    assert told["completion_tokens"] == 7  # those behind "&" in its chain, the end among them
    for options in ({}, {"parallel_tool_calls": False}, {"logprobs": True}):
        assert usage(**options) == told
    forced = usage(tool_choice="required", max_tokens=60)
    assert forced == usage(tool_choice="required", max_tokens=60, speculation="off")


@pytest.mark.parametrize(
    ("last", "text"), [("#", '<tool_call>{"name": "launch", "arguments": {}} </tool_call>'), (".", "It is sunny today")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_call_is_text(caller: Server, last: str, text: str, stream: bool) -> None:
    told = caller.client().chat.completions.create(**asked(last), stream=stream)
    if stream:
        assert streamed(told) == (text, [], "stop")
    else:
        assert (told.choices[0].message.content, told.choices[0].finish_reason) == (text, "stop")
        assert told.choices[0].message.tool_calls is None


def test_a_call_that_breaks(caller: Server) -> None:
    text = '<tool_call>{"name": "clock", "arguments": {"zone" oops'
    whole = caller.client().chat.completions.create(**asked("%")).choices[0]
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == (text, None, "stop")
    content, (call,), reason = streamed(caller.client().chat.completions.create(**asked("%"), stream=True))
    assert call["name"] == "clock" and call["arguments"] + content == '{"zone" oops' and reason == "stop"


def test_a_limit_within_a_call(caller: Server) -> None:
    choice = caller.client().chat.completions.create(**asked("?", max_tokens=6)).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert choice.message.content == 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city":  "Köln"'


def test_none_calls_nothing_and_shows_no_tools(caller: Server) -> None:
    client = caller.client()
    none = client.chat.completions.create(**asked("?", tool_choice="none"))
    bare = {key: value for key, value in asked("?").items() if key != "tools"}
    without = client.chat.completions.create(**bare)
    assert none.choices[0].message.content == without.choices[0].message.content
    assert none.choices[0].finish_reason == "stop" and none.choices[0].message.tool_calls is None
    assert none.usage.prompt_tokens == without.usage.prompt_tokens
    offered = client.chat.completions.create(**asked("?", tool_choice="auto"))
    assert offered.usage.prompt_tokens > none.usage.prompt_tokens


def test_logprobs_are_of_every_token(caller: Server) -> None:
    client = caller.client()
    whole = client.chat.completions.create(**asked("?", logprobs=True)).choices[0].logprobs.content
    chunks = list(client.chat.completions.create(**asked("?", logprobs=True), stream=True))
    parts = [e for chunk in chunks if chunk.choices[0].logprobs for e in chunk.choices[0].logprobs.content]
    assert len(whole) == 11 and parts == whole


def test_a_conversation_goes_on_with_what_a_tool_said(caller: Server) -> None:
    client = caller.client()
    told = asked("?")
    message = client.chat.completions.create(**told).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees."}
    answer = client.chat.completions.create(**told | {"messages": [*told["messages"], message, result]})
    assert answer.choices[0].message.content == "It is sunny today"
    sent = [*told["messages"], message.model_dump(exclude_unset=True), result]
    body = {"messages": sent, "tools": TOOLS}
    tokens = caller.post("/tokenize", body).json()["tokens"]
    prompt = caller.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert prompt == ChatTemplate(TEMPLATE, {}).render(with_argument_objects(sent), tools=TOOLS)
    assert '{"name": "weather", "arguments": {"city": "Köln", "days": 2}}' in prompt
    assert "<tool_response>\n12 degrees.\n</tool_response>" in prompt


@pytest.mark.parametrize("broken", ['{"city": "Kö', "[]", "null"])
def test_a_conversation_goes_on_after_a_call_that_is_no_json(caller: Server, broken: str) -> None:
    """Its client sends it again with every turn."""
    called = {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": broken}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "these are no arguments"}
    body = asked("?", messages=[{"role": "user", "content": "?"}, called, result])
    assert caller.post("/v1/chat/completions", body).status_code == 200
    tokens = caller.post("/tokenize", {"messages": body["messages"], "tools": TOOLS}).json()["tokens"]
    prompt = caller.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert f'{{"name": "f", "arguments": {broken}}}' in prompt


def deep(levels: int) -> dict[str, Any]:
    return {"items": deep(levels - 1)} if levels else {}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | function}


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "forced without tools": ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    "many": ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools"),
    "two of a name": ({"tools": [tool(), tool()]}, "tools[1].function.name"),
    "kind": ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    "name": ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
    "long name": ({"tools": [tool(name="a" * 65)]}, "tools[0].function.name"),
    "description": ({"tools": [tool(description="a" * (1 << 15))]}, "tools[0].function.description"),
    "parameters": ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    "deep": ({"tools": [tool(parameters=deep(30))]}, "tools[0].function.parameters"),
    "large": ({"tools": [tool(parameters={"a": "b" * MAX_JSON_BYTES})]}, "tools[0].function.parameters"),
    "not there": ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    "choice": ({"tool_choice": "any"}, "tool_choice"),
    "forced alone": ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    "empty calls": ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0]"),
    "no id": ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    "role": ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].role"),
    "no role": ({"messages": [{"content": "a"}]}, "messages[0].role"),
    "nothing said": ({"messages": [{"role": "assistant"}]}, "messages[0]"),
    "a call by the user": ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "messages[0].tool_"),
    "call": ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(caller: Server, name: str) -> None:
    wrong, param = WRONG[name]
    response = caller.post("/v1/chat/completions", asked("?") | wrong)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


def test_a_schema_that_is_nested_beyond_reason_harms_nobody(caller: Server) -> None:
    url, headers = caller.url + "/v1/chat/completions", {"Content-Type": "application/json"}
    body = json.dumps(asked("?") | {"tools": [tool(parameters={"a": 0})]})
    for levels in (900, 100_000):
        hostile = body.replace('"a": 0', '"a": ' + "[" * levels + "]" * levels)
        assert httpx.post(url, content=hostile, headers=headers, timeout=60).status_code == 400


def test_a_model_that_was_not_taught_to_call_refuses_tools(server: Server, model: Path) -> None:
    with pytest.raises(openai.BadRequestError, match=r"teaches no tool calls.*--tool-parser") as caught:
        server.client().chat.completions.create(**asked("?"))
    assert caught.value.param == "tools"
    words = [sys.executable, "-m", "outpace.cli.main", "serve", str(model), "--port", "0", "--tool-parser", "hermes"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "does not show it any tools" in done.stderr


def test_the_format_is_the_templates_or_the_users() -> None:
    assert resolve_format("auto", QWEN25_TOOLS) is HERMES
    assert resolve_format("auto", None) is resolve_format("auto", "plain") is None
    assert resolve_format("mistral", QWEN25_TOOLS) is FORMATS["mistral"]
    assert set(get_args(ToolParser)) == {"auto", *FORMATS}
    with pytest.raises(ConfigError, match="does not show it any tools"):
        resolve_format("llama3", "{{ messages }}")
    with pytest.raises(ConfigError, match="tool_parser is 'x'; there are auto, hermes"):
        ServerConfig(tool_parser="x")  # type: ignore[arg-type]
