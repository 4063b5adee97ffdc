"""Log-probabilities, echoes and penalties through the server are those that the engine gives in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outpace import LLM, SamplingParams
from server.running import Server

TEXT = "abc ü"
ASKED: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 12, "temperature": 0}
HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(str(model), drafter=None, num_pages=400)


def test_chat(server: Server, llm: LLM) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    expected = llm.chat(HELLO, SamplingParams(max_tokens=12, logprobs=2))
    assert expected.logprobs is not None
    answer = server.client().chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    told = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in told] == pytest.approx([found.logprob for found in expected.logprobs], abs=1e-4)
    assert all(len(entry.top_logprobs) == 2 for entry in told)
    assert b"".join(bytes(entry.bytes) for entry in told).decode(errors="replace") == expected.text
    assert any("\ufffd" in entry.token for entry in told)  # put together out of parts, of which each has its byte
    chunks = server.client().chat.completions.create(**asked, logprobs=True, top_logprobs=2, stream=True)
    streamed = [e for chunk in chunks if chunk.choices[0].logprobs for e in chunk.choices[0].logprobs.content]
    assert streamed == told
    bare = server.client().chat.completions.create(**asked, logprobs=True)
    assert [entry.top_logprobs for entry in bare.choices[0].logprobs.content] == [[]] * 12
    none = server.client().chat.completions.create(**asked)
    assert none.choices[0].logprobs is None


def test_completion(server: Server) -> None:
    answer = server.client().completions.create(**ASKED, logprobs=3)
    told = answer.choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 12
    assert told.text_offset[0] == 0 and sorted(told.text_offset) == told.text_offset
    chunks = list(server.client().completions.create(**ASKED, logprobs=3, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    for column in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [value for part in parts for value in getattr(part, column)] == getattr(told, column)


def test_parts_of_characters_have_names_of_their_own_in_columns(server: Server) -> None:
    """They would all be the same key, and of several likely tokens one would be told."""
    told = server.client().completions.create(**ASKED, logprobs=5).choices[0].logprobs
    assert all(5 <= len(top) <= 6 for top in told.top_logprobs)
    assert all(token in top for token, top in zip(told.tokens, told.top_logprobs, strict=True))
    names = [name for top in told.top_logprobs for name in top]
    parts = [name for name in names if name.startswith("bytes:")]
    assert parts and all(re.fullmatch(r"bytes:\\x[89a-f][0-9a-f]", name) for name in parts)
    assert not any("\ufffd" in name for name in names)


def test_echo(server: Server) -> None:
    client = server.client()
    plain = client.completions.create(**ASKED).choices[0].text
    for stream in (False, True):
        answer = client.completions.create(**ASKED, echo=True, stream=stream)
        chunks = list(answer) if stream else [answer]
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT + plain
    told = client.completions.create(**ASKED, echo=True, logprobs=1).choices[0].logprobs
    assert len(told.tokens) == len(TEXT.encode()) + 12
    assert told.token_logprobs[0] is None and all(value < 0 for value in told.token_logprobs[1:])
    assert "".join(told.tokens[:4]) == TEXT[:4]


def test_prompt_logprobs(server: Server, llm: LLM) -> None:
    (expected,) = llm.generate([TEXT], SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert expected.prompt_logprobs is not None
    answer = server.post("/v1/completions", ASKED | {"prompt_logprobs": 1}).json()
    told = [entry["logprob"] for entry in answer["choices"][0]["prompt_logprobs"]]
    assert told[0] is None
    assert told[1:] == pytest.approx([found.logprob for found in expected.prompt_logprobs[1:] if found], abs=1e-4)


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 1.3},
        {"logit_bias": {"65": 30.0, "66": 29.5}},
        {"min_tokens": 10, "logit_bias": {"257": 100.0}},
    ],
)
@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_penalties(server: Server, llm: LLM, params: dict[str, Any], speculation: str) -> None:
    ours = dict(params)
    if "logit_bias" in params:
        ours["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    (expected,) = llm.generate([TEXT], SamplingParams(max_tokens=30, **ours))
    body = ASKED | {"max_tokens": 30, "speculation": speculation} | params
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"]["completion_tokens"] == len(expected.token_ids)
