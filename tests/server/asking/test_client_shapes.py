"""What clients in use send beside what they ask: taken where it cannot change the answer, else refused by name.

Shapes as the `openai` packages, LangChain, LiteLLM, Open WebUI and Continue write them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from models.tool_templates import QWEN3_TOOLS
from outpace.errors import ConfigError
from outpace.server.settings import ServerConfig
from server.models import make_model
from server.running import Server, serving

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0}
PAGE = "http://localhost:3000"

NEUTRAL: dict[str, dict[str, Any]] = {
    "a quickstart": {"store": True, "metadata": {"app": "notes"}},
    "openai's accounts": {"safety_identifier": "u1", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    "openai's tiers": {"service_tier": "auto", "verbosity": "medium", "modalities": ["text"]},
    "a predicted text": {"prediction": {"type": "content", "content": "Hello!"}},
    "all that is not set": dict.fromkeys(
        ["audio", "function_call", "functions", "logit_bias", "metadata", "modalities", "n", "prediction", "reasoning"]
        + ["reasoning_effort", "stop", "store", "stream", "stream_options", "tools", "tool_choice", "top_logprobs"]
        + ["web_search_options", "guided_json", "extra_body", "chat_template", "response_format", "user", "seed"]
    ),
    "no tools": {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "no tools, none": {"tools": [], "tool_choice": "none", "parallel_tool_calls": False},
    "usage without a stream": {"stream": False, "stream_options": {"include_usage": True}},
    "no logprobs": {"logprobs": False, "top_logprobs": 0},
    "vllm's defaults": {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "skip_special_tokens": True, "priority": 0}
    | {"add_generation_prompt": True, "continue_final_message": False, "use_beam_search": False},
    "empty lists": {"stop": [], "logit_bias": {}, "stop_token_ids": [], "bad_words": []},
}
PAST: dict[str, dict[str, Any]] = {
    "dumped by the openai package": {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    | {"tool_calls": None},
    "as openai answers": {"refusal": None, "annotations": []},
    "an empty list of calls": {"tool_calls": []},
    "hints to a cache": {"cache_control": {"type": "ephemeral"}},
    "of a model that reasoned": {"reasoning_content": "Let me see."},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "effort": ({"reasoning_effort": "low"}, "reasoning_effort"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "sound": ({"modalities": ["text", "audio"]}, "modalities[1]"),
    "search": ({"web_search_options": {}}, "web_search_options"),
    "functions": ({"functions": [{"name": "f"}]}, "functions"),
    "special tokens": ({"skip_special_tokens": False}, "skip_special_tokens"),
    "beams": ({"use_beam_search": True}, "use_beam_search"),
    "padding": ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obf"),
    "labels": ({"metadata": {str(i): "a" for i in range(17)}}, "metadata"),
    "a long label": ({"metadata": {"a": "b" * 513}}, "metadata.a"),
    "two ends of a prompt": ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    "variables": ({"chat_template_kwargs": {"a": "b" * (1 << 16)}}, "chat_template_kwargs"),
    "no model": ({"model": None}, "model"),
    "the last word": ({"messages": [{"role": "assistant", "content": None}]}, "messages[0]"),
    "no result": ({"messages": [{"role": "tool", "tool_call_id": "a", "content": None}]}, "messages[0].content"),
}


def prompt_of(server: Server, **body: Any) -> str:
    """What a conversation becomes."""
    tokens = server.post("/tokenize", body).json()["tokens"]
    text: str = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    return text


def told(response: httpx.Response) -> tuple[Any, Any, Any]:
    assert response.status_code == 200, response.text
    body = response.json()
    return body["choices"], body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_cannot_change_the_answer_is_taken(server: Server, name: str) -> None:
    assert told(server.post(CHAT, ASKED | NEUTRAL[name])) == told(server.post(CHAT, ASKED))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_is_refused_by_name(server: Server, name: str, stream: bool) -> None:
    wrong, param = REFUSED[name]
    response = server.post(CHAT, ASKED | {"stream": stream} | wrong)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("options", "status"), [({"best_of": 1}, 200), ({"best_of": 2, "n": 2}, 200), ({"suffix": ""}, 200)]
    + [({"best_of": 3, "n": 2}, 400), ({"suffix": "b"}, 400), ({"best_of": 0}, 400)],
)  # fmt: skip
def test_fields_of_completions_alone(server: Server, options: dict[str, Any], status: int) -> None:
    response = server.post(COMPLETE, {"model": "tiny", "prompt": "a", "max_tokens": 4} | options)
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["param"] in options


@pytest.mark.parametrize("name", PAST)
def test_past_answers_are_taken_as_clients_kept_them(server: Server, name: str) -> None:
    past = {"role": "assistant", "content": "Hi."}
    assert prompt_of(server, messages=[*HELLO, past | PAST[name], *HELLO]) == prompt_of(
        server, messages=[*HELLO, past, *HELLO]
    )


def test_labels_are_in_the_log(server: Server) -> None:
    labels = {"user": "u", "safety_identifier": "s", "metadata": {"app": "notes"}}
    response = server.post(CHAT, ASKED | labels)
    line = server.line_of(response.headers["x-request-id"])
    assert {name: line[name] for name in labels} == labels


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose template can be told not to think, for pages of one origin."""
    folder = make_model(tmp_path_factory.mktemp("thinker") / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": QWEN3_TOOLS}))
    flags = ("--drafter", "none", "--num-pages", "100", "--allow-origin", PAGE)
    with serving(folder, *flags, env={"OUTPACE_API_KEY": "right"}) as running:
        yield running


KEY = {"Authorization": "Bearer right"}


def test_a_template_takes_its_own_variables(thinker: Server) -> None:
    def asked(**options: Any) -> str:
        tokens = thinker.post("/tokenize", {"messages": HELLO} | options, headers=KEY).json()["tokens"]
        text: str = thinker.post("/detokenize", {"tokens": tokens}, headers=KEY).json()["prompt"]
        response = thinker.post(CHAT, ASKED | {"messages": HELLO} | options, headers=KEY)
        assert response.json()["usage"]["prompt_tokens"] == len(tokens)
        return text

    bare = asked()
    assert asked(chat_template_kwargs={"enable_thinking": True}) == bare
    assert asked(chat_template_kwargs={"enable_thinking": False}) == bare + "<think>\n\n</think>\n\n"
    assert asked(add_generation_prompt=False) == bare.removesuffix("<|im_start|>assistant\n")
    begun = [*HELLO, {"role": "assistant", "content": "It is"}]
    for options in ({}, {"add_generation_prompt": False}):
        assert asked(messages=begun, continue_final_message=True, **options) == bare + "It is"


def test_past_calls_are_taken_as_clients_put_them_together(thinker: Server) -> None:
    def prompt(**call: Any) -> list[int]:
        past = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}} | call
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [past]}]
        messages += [{"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "done"}], "name": "f"}]
        response = thinker.post("/tokenize", {"messages": messages}, headers=KEY)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["tokens"]
        return tokens

    bare = prompt()
    assert prompt(index=0) == bare
    for arguments in ("", None):
        assert prompt(function={"name": "f", "arguments": arguments}) == bare


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/chat/completions//"])
def test_a_slash_at_the_end_says_nothing(server: Server, path: str) -> None:
    assert told(server.post(path, ASKED)) == told(server.post(CHAT, ASKED))
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_head_is_get_without_the_body(server: Server, path: str) -> None:
    response = httpx.head(server.url + path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == server.get(path).headers["content-type"]
    assert httpx.head(server.url + CHAT).status_code == 405


def test_a_compressed_body_is_refused_with_the_remedy(server: Server) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps(ASKED).encode()
    sent = {"content": gzip.compress(body), "headers": headers | {"Content-Encoding": "gzip"}}
    response = httpx.post(server.url + CHAT, **sent)  # type: ignore[arg-type]
    assert response.status_code == 415
    assert "'gzip': send it as it is" in response.json()["error"]["message"]
    for encoding in ("identity", "Identity"):
        response = httpx.post(server.url + CHAT, content=body, headers=headers | {"Content-Encoding": encoding})
        assert response.status_code == 200


def preflight(server: Server, origin: str) -> httpx.Response:
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    return httpx.options(
        server.url + CHAT, headers=asks | {"Access-Control-Request-Headers": "authorization,content-type"}
    )


def test_pages_of_a_named_origin_may_ask(thinker: Server) -> None:
    allowed = preflight(thinker, PAGE)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    answer = thinker.post(CHAT, ASKED, headers=KEY | {"Origin": PAGE})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
    refused = thinker.post(CHAT, ASKED, headers={"Origin": PAGE})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in refused.headers["access-control-expose-headers"]


def test_others_may_not(thinker: Server, server: Server) -> None:
    assert preflight(thinker, "http://evil.example").status_code == 400
    other = thinker.post(CHAT, ASKED, headers=KEY | {"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    for origin in (PAGE, "null"):  # nothing was allowed there
        response = preflight(server, origin)
        assert response.status_code == 405 and "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origin", ["localhost:3000", "http://localhost/", "http://a b", ""])
def test_what_is_no_origin_is_refused_at_start(origin: str) -> None:
    with pytest.raises(ConfigError, match="allow_origin is"):
        ServerConfig(allow_origin=(origin,))
    ServerConfig(allow_origin=("*", "https://chat.example:8443", "app://obsidian.md"))
