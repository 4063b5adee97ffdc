"""What is wrong is refused by name, in OpenAI's form, and harms nobody else."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx2 as httpx
import openai
import pytest
from pydantic import BaseModel, ValidationError

from outpace.server.asking.protocol import ChatRequest, CompletionRequest, DetokenizeRequest
from server.running import Server

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello!"}]

WRONG_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"functions": []}, "functions"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "response_format": ({"response_format": {"type": "yaml"}}, "response_format"),
    "two forms": ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    "guided_regex": ({"guided_regex": "a"}, "guided_regex"),
    "schema keyword": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"minLenght": 3}}}},
        "response_format",
    ),
    "unsupported keyword": ({"structured_outputs": {"json": {"type": "string", "format": "no"}}}, "structured_outputs"),
    "regex": ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    "empty answer": ({"structured_outputs": {"regex": "a{0}"}}, "structured_outputs"),
    "rules": ({"structured_outputs": {"grammar": "root ::= (("}}, "structured_outputs"),
    "look-ahead": ({"structured_outputs": {"regex": "(?=a)a"}}, "structured_outputs"),
    "no end": ({"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs"),
    "choices": ({"structured_outputs": {"choice": ["a"] * 1025}}, "structured_outputs"),
    "long regex": ({"structured_outputs": {"regex": "a" * 8193}}, "structured_outputs"),
    "temperature": ({"temperature": -0.1}, "temperature"),
    "temperature text": ({"temperature": "1"}, "temperature"),
    "temperature bool": ({"temperature": True}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "top_p above": ({"top_p": 1.1}, "top_p"),
    "top_k": ({"top_k": -2}, "top_k"),
    "min_p": ({"min_p": 2}, "min_p"),
    "seed": ({"seed": -1}, "seed"),
    "seed large": ({"seed": 1 << 63}, "seed"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens large": ({"max_tokens": 1 << 40}, "max_tokens"),
    "max_completion_tokens": ({"max_completion_tokens": -3}, "max_completion_tokens"),
    "two limits": ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
    "n": ({"n": 0}, "n"),
    "n large": ({"n": 129}, "n"),
    "stop": ({"stop": [1]}, "stop"),
    "stops": ({"stop": ["a"] * 17}, "stop"),
    "stop long": ({"stop": ["a" * 1025]}, "stop[0]"),
    "stop empty": ({"stop": ""}, "stop"),
    "stop_token_ids": ({"stop_token_ids": [258]}, "stop_token_ids"),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, "stop_token_ids"),
    "stop_token_ids huge": ({"stop_token_ids": [1 << 70], "n": 2}, "stop_token_ids"),
    "stop surrogate": ({"stop": ["a", "\ud800"]}, "stop"),
    "regex surrogate": ({"structured_outputs": {"regex": "\ud800"}, "n": 2}, "structured_outputs"),
    "choice surrogate": ({"structured_outputs": {"choice": ["\udfff"]}, "n": 2}, "structured_outputs"),
    "schema surrogate": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "\ud800"}}}},
        "response_format",
    ),
    "name surrogate": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "\ud800", "schema": {"minLenght": 1}}}},
        "response_format",
    ),
    "min_tokens": ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    "presence_penalty": ({"presence_penalty": 2.5}, "presence_penalty"),
    "frequency_penalty": ({"frequency_penalty": -2.5}, "frequency_penalty"),
    "repetition_penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "logit_bias": ({"logit_bias": {"1": 101}}, "logit_bias"),
    "logit_bias many": ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    "fields": ({f"x{i}": 1 for i in range(200)}, ""),
    "fields within": ({"stream_options": {f"x{i}": 1 for i in range(200)}}, "stream_options"),
    "far too long": ({"messages": [{"role": "user", "content": "a" * 30_000}]}, "messages"),
    "logit_bias key": ({"logit_bias": {"one": 1}}, "logit_bias"),
    "logit_bias twice": ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
    "bad_words": ({"bad_words": [[]]}, "bad_words"),
    "bad_words unknown": ({"bad_words": [[258]]}, "bad_words"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "prompt_logprobs": ({"prompt_logprobs": -1}, "prompt_logprobs"),
    "speculation": ({"speculation": "on"}, "speculation"),
    "speculation k": ({"speculation": {"max_k": 16}}, "speculation"),
    "stream_options unknown": ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    "no messages": ({"messages": []}, "messages"),
    "messages": ({"messages": "Hello"}, "messages"),
    "role": ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].role"),
    "content": ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    "surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    "too long": ({"messages": [{"role": "user", "content": "a" * 160}]}, "messages"),
}

WRONG_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"prompt": []}, "prompt"),
    "empty prompt": ({"prompt": ""}, "prompt"),
    "empty among others": ({"prompt": ["a", ""]}, "prompt"),
    "mixed": ({"prompt": ["a", 1]}, "prompt"),
    "unknown token": ({"prompt": [1, 258]}, "prompt"),
    "negative token": ({"prompt": [1, -1]}, "prompt"),
    "huge token": ({"prompt": [1 << 40]}, "prompt"),
    "many": ({"prompt": ["a"] * 129}, "prompt"),
    "many choices": ({"prompt": ["a"] * 64, "n": 3}, "n"),
    "logprobs": ({"logprobs": 21}, "logprobs"),
    "suffix": ({"suffix": "b"}, "suffix"),
    "best_of": ({"best_of": 2}, "best_of"),
    "too long": ({"prompt": [1] * 160}, "prompt"),
    "far too long": ({"prompt": [1] * 100_000, "n": 128}, "prompt"),
}


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("name", WRONG_CHATS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_chat_names_the_field(server: Server, name: str, stream: bool) -> None:
    wrong, param = WRONG_CHATS[name]
    if stream and "stream_options" in wrong:
        pytest.skip("says itself whether it streams")
    body = {"model": "tiny", "messages": HELLO} | ({"stream": True} if stream else {}) | wrong
    error = refusal(httpx.post(server.url + CHAT, content=json.dumps(body), headers=JSON, timeout=60))
    assert (error["param"] or "").startswith(param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("name", WRONG_COMPLETIONS)
def test_a_wrong_completion_names_the_field(server: Server, name: str) -> None:
    wrong, param = WRONG_COMPLETIONS[name]
    error = refusal(server.post(COMPLETE, {"model": "tiny", "prompt": "a"} | wrong))
    assert error["param"].startswith(param)


def test_null_is_the_same_as_leaving_it_out(server: Server) -> None:
    nulls = dict.fromkeys(
        ["temperature", "top_p", "n", "stop", "seed", "stream", "stream_options", "logit_bias", "user", "max_tokens"]
    )
    response = server.post(COMPLETE, {"model": "tiny", "prompt": "a"} | nulls)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] <= 16


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"1", b"\xff", b'{"model": "tiny", "prompt": "a", "top_p": NaN}', b"[" * 100_000]
    + [b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 5000 + b"}"],
)
def test_what_is_no_object_is_refused(server: Server, content: bytes) -> None:
    refusal(httpx.post(server.url + COMPLETE, content=content, headers=JSON))


def test_another_content_type_is_refused_with_the_remedy(server: Server) -> None:
    response = httpx.post(server.url + COMPLETE, content=b"{}", headers={"Content-Type": "text/plain"})
    assert "Content-Type: application/json" in refusal(response)["message"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 129}, "n is 129: .*less than or equal to 128"),
        ({"stop": ["a"] * 17}, "stop: .*at most 16 items.*not 17"),
        ({"stop": [1]}, r"stop\[0\] is 1: .*valid string"),
        ({"bad_words": [""]}, r"bad_words\[0\] is '': .*at least 1 character"),
        ({"temperature": "hot"}, "temperature is 'hot': .*valid number"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; it must lie in 0 … 20"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0; it must lie in 1 … .*"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens is 4 and max_completion_tokens 5: leave one .*"),
        ({"speculation": {"max_k": 16}}, r"speculation\.max_k is 16; it must lie in 0 … 15"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.*"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format: .*'not'.*",
        ),
    ],
)
def test_a_refusal_says_what_came_and_what_may(server: Server, wrong: dict[str, Any], message: str) -> None:
    told = refusal(server.post(CHAT, {"model": "tiny", "messages": HELLO} | wrong))["message"]
    assert re.fullmatch(message, told), told


@pytest.mark.parametrize(
    ("wrong", "param", "meant"),
    [
        ({"temprature": 1}, "temprature", "temperature"),
        ({"max_token": 1, "mesages": []}, "max_token", "max_tokens"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "include_usage"),
        ({"messages": [{"role": "user", "contents": "a"}]}, "messages[0].contents", "content"),
        ({"messages": [{"role": "tool", "tool_id": "a"}]}, "messages[0].tool_id", "tool_call_id"),
        ({"messages": [{"role": "user", "tool_call_ids": "a"}]}, "messages[0].tool_call_ids", None),
        ({"messages": [{"role": "user", "content": [{"txt": "a"}]}]}, "messages[0].content[0].txt", "text"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "json"),
        ({"tools": [{"function": {"names": "a"}}]}, "tools[0].function.names", "name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schemas": {}}}},
            "response_format.json_schema.schemas",
            "schema",
        ),
        ({"tool_choice": {"type": "function", "function": {"nme": "f"}}}, "tool_choice.function.nme", "name"),
        ({"functions": []}, "functions", None),
        ({"x" * 100_000: 1}, "x" * 200, None),
    ],
)
def test_a_mistyped_field_is_told_what_was_meant(
    server: Server, wrong: dict[str, Any], param: str, meant: str | None
) -> None:
    error = refusal(server.post(CHAT, {"model": "tiny", "messages": HELLO} | wrong))
    asked = f", or did you mean {meant}?" if meant else ""
    assert error["message"] == f"{param} is not supported by this server; leave it out{asked}"
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")


def test_the_client_library_understands_refusals(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        server.client().chat.completions.create(model="gpt", messages=HELLO)


def test_paths_and_methods_that_there_are_not(server: Server) -> None:
    for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/responses", "/chat/completions"):
        found = refusal(server.post(path, {"model": "tiny"}), 404)
        assert found["code"] == "not_found" and found["message"].startswith(f"there is no '{path}' here; this server")
    served = found["message"].partition(" has ")[2].split(", ")
    listed = set(server.get("/openapi.json").json()["paths"]) - {"/v1/models/{name}"}
    assert set(served) == listed, "every endpoint, as its OpenAPI document has them"
    other = refusal(server.get(CHAT), 405)
    assert (other["code"], other["message"]) == ("method_not_allowed", f"'{CHAT}' takes POST, not GET")
    assert 'path="other"' in server.get("/metrics").text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": HELLO}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a", "x": 1}, "x"),
        ({"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "a", "continue_final_message": False}, "continue_final_message"),
    ],
)
def test_tokenize_refuses(server: Server, body: dict[str, Any], param: str) -> None:
    assert refusal(server.post("/tokenize", body))["param"] == param


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], "a", None])
def test_detokenize_refuses(server: Server, tokens: Any) -> None:
    assert refusal(server.post("/detokenize", {"tokens": tokens}))["param"].startswith("tokens")


def test_headers_without_end_are_cut(server: Server) -> None:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_all_that_harmed_nobody(server: Server) -> None:
    assert server.post(COMPLETE, {"model": "tiny", "prompt": "a"}).status_code == 200
    assert server.held_pages() == 0
    assert server.state()["engine_deaths"] == 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DetokenizeRequest, {"tokens": [""] * 1000}),
        (DetokenizeRequest, {f"x{i}": 1 for i in range(1000)}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): "" for i in range(2000)}}),
        (CompletionRequest, {"prompt": "a", "structured_outputs": {f"x{i}": 1 for i in range(1000)}}),
        (CompletionRequest, {"prompt": [1] * 9 + [""] * 1000}),
        (ChatRequest, {"messages": [{"role": "user"}] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "content": "a"}], "stop_token_ids": [""] * 1000}),
    ],
)
def test_a_long_list_of_nonsense_is_one_error_a_form(kind: type[BaseModel], body: dict[str, Any]) -> None:
    """Each element an error of its own would take seconds and gigabytes, while every stream waits."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": "tiny"} | body)
    assert caught.value.error_count() <= 6


@pytest.mark.parametrize(
    ("second", "message"),
    [("", "the prompt is empty"), ([1, 258], "token id 258 is unknown"), ([1] * 160, "the prompt has 160 tokens")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_second_prompt_is_refused_before_the_first_is_begun(
    server: Server, second: Any, message: str, stream: bool
) -> None:
    """Of a stream that has begun the status would be 200, and half of the answers paid for."""
    before = server.state()["totals"]["tokens"]
    first = "a" if isinstance(second, str) else [1]
    error = refusal(server.post(COMPLETE, {"model": "tiny", "prompt": [first, second], "stream": stream}))
    assert error["param"] == "prompt" and message in error["message"]
    assert server.state()["totals"]["tokens"] == before


def test_an_error_within_a_stream_names_the_field_as_a_status_would(server: Server) -> None:
    """A grammar that another field leaves no token to go on with, which shows on the way."""
    asked = {"model": "tiny", "prompt": "a", "structured_outputs": {"regex": "ab{3,5}"}, "bad_words": ["b"]}
    whole = refusal(server.post(COMPLETE, asked))
    response = server.post(COMPLETE, asked | {"stream": True})
    assert response.status_code == 200 and "[DONE]" not in response.text
    assert json.loads(response.text.rstrip().rpartition("data: ")[2])["error"] == whole
    assert whole["param"] == "structured_outputs"
