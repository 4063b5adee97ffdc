"""The `openai` package against a live server: what it is told is what the engine says in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest

from outpace import LLM, SamplingParams
from outpace.fingerprint import commit
from server.running import Server, until

HELLO = [{"role": "user", "content": "Hello!"}]
TEXT = "Příliš žluťoučký 日本語 😀"


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    """The same model here, plainly decoded."""
    return LLM(str(model), drafter=None, num_pages=400)


def whole(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_a_chat_is_what_the_engine_says(server: Server, llm: LLM) -> None:
    answer = server.client().chat.completions.create(model="tiny", messages=HELLO, max_tokens=60, temperature=0)
    expected = llm.chat(HELLO, SamplingParams(max_tokens=60))
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == len(expected.prompt_ids)
    assert answer.usage.total_tokens == len(expected.token_ids) + len(expected.prompt_ids)


def test_a_completion_is_what_the_engine_says(server: Server, llm: LLM) -> None:
    client = server.client()
    for prompt in (TEXT, [1, 2, 3, 200, 17]):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=50, temperature=0)
        (expected,) = llm.generate([prompt], SamplingParams(max_tokens=50))
        assert answer.choices[0].text == expected.text


def test_speculation_changes_nothing_but_its_figures(server: Server) -> None:
    client = server.client()
    answers = [
        client.completions.create(
            model="tiny",
            prompt=TEXT,
            max_tokens=40,
            temperature=0.8,
            seed=5,
            extra_body={"speculation": policy, "top_k": 40, "min_p": 0.01},
        )
        for policy in ("off", "auto", {"max_k": 1})
    ]
    assert len({answer.choices[0].text for answer in answers}) == 1
    off, auto, one = (answer.usage.model_extra["speculation"] for answer in answers)
    assert off["drafted"] == 0 and off["accept_length"] is None, "no cycle drafted"
    assert auto["drafted"] > one["drafted"] > 0
    assert auto["accept_length"] >= 1.0


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"max_tokens": 1}])
def test_a_stream_is_the_answer_in_pieces(server: Server, params: dict[str, Any]) -> None:
    client = server.client()
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 70, "temperature": 0} | params
    answer = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert whole(chunks) == answer.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons[-1] == answer.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("last", [False, True])
def test_usage_so_far_is_in_every_chunk_that_is_to_have_it(server: Server, last: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 30, "temperature": 0, "logprobs": 0}
    options = {"include_usage": last, "continuous_usage_stats": True}
    chunks = list(server.client().completions.create(**asked, stream=True, stream_options=options))
    whole_usage = server.client().completions.create(**asked).usage
    assert bool(chunks[-1].choices) is not last
    told = 0
    for chunk in chunks[: len(chunks) - last]:
        told += len(chunk.choices[0].logprobs.tokens) if chunk.choices[0].logprobs else 0
        assert chunk.usage.completion_tokens == told
        assert chunk.usage.total_tokens == told + whole_usage.prompt_tokens
    assert told == whole_usage.completion_tokens == chunks[-1].usage.completion_tokens == 30


def test_the_events_themselves(server: Server) -> None:
    body = {"model": "tiny", "prompt": TEXT, "max_tokens": 40, "temperature": 0, "stream": True}
    response = server.post("/v1/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert (
        "".join(chunk["choices"][0]["text"] for chunk in chunks)
        == server.post("/v1/completions", body | {"stream": False}).json()["choices"][0]["text"]
    )
    assert "usage" not in chunks[0]


def test_a_chat_without_a_limit_goes_on_to_the_contexts_end(server: Server) -> None:
    answer = server.post("/v1/chat/completions", {"model": "tiny", "messages": HELLO, "ignore_eos": True}).json()
    assert answer["usage"]["total_tokens"] == 160
    assert answer["choices"][0]["finish_reason"] == "length"


def test_choices_have_seeds_of_their_own(server: Server) -> None:
    client = server.client()
    asked: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 30, "seed": 9}
    first, again = (client.completions.create(**asked, n=3) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.text for choice in again.choices] == texts
    assert client.completions.create(**asked).choices[0].text == texts[0]
    assert first.usage.completion_tokens == 90 and first.usage.prompt_tokens == 1


def test_several_prompts_are_answered_as_each_alone(server: Server) -> None:
    client = server.client()
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "seed": 4, "n": 2}
    prompts = ["first", TEXT, "third one"]
    together = [choice.text for choice in client.completions.create(prompt=prompts, **asked).choices]
    alone = [choice.text for p in prompts for choice in client.completions.create(prompt=p, **asked).choices]
    assert together == alone
    ids = [server.post("/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in prompts]
    assert [choice.text for choice in client.completions.create(prompt=ids, **asked).choices] == alone


def test_streams_of_several_choices_are_told_apart(server: Server) -> None:
    client = server.client()
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "seed": 1, "n": 6}
    texts = [""] * 6
    for chunk in client.chat.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in client.chat.completions.create(**asked).choices]


def test_many_at_once_from_an_async_client(server: Server) -> None:
    def asked(seed: int) -> dict[str, Any]:
        return {"model": "tiny", "prompt": f"{seed} " * (seed + 1), "max_tokens": 15, "seed": seed}

    async def all_of_them() -> list[str]:
        async with server.async_client() as client:

            async def streamed(seed: int) -> str:
                chunks = await client.completions.create(**asked(seed), stream=True)
                return "".join([chunk.choices[0].text async for chunk in chunks])

            return await asyncio.gather(*(streamed(seed) for seed in range(8)))

    client = server.client()
    assert asyncio.run(all_of_them()) == [client.completions.create(**asked(s)).choices[0].text for s in range(8)]


def test_stops(server: Server) -> None:
    client = server.client()
    asked: dict[str, Any] = {"model": "tiny", "prompt": "stop", "max_tokens": 60, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stop = next(text[i : i + 2] for i in range(10, 60) if "\ufffd" not in text[i : i + 2])
    stopped = client.completions.create(**asked, stop=[stop, "never there"])
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 60
    chunks = list(client.completions.create(**asked, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == stopped.choices[0].text


def test_the_model_is_listed(server: Server) -> None:
    (model,) = server.client().models.list().data
    assert model.id == "tiny" and model.model_extra["max_model_len"] == 160
    assert server.client().models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        server.client().models.retrieve("other")


def test_tokenize_and_back(server: Server) -> None:
    told = server.post("/tokenize", {"model": "tiny", "prompt": TEXT}).json()
    assert told["count"] == len(told["tokens"]) == len(TEXT.encode())
    assert server.post("/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": TEXT}
    chat = server.post("/tokenize", {"messages": HELLO}).json()
    prompt = server.post("/detokenize", {"tokens": chat["tokens"]}).json()["prompt"]
    assert prompt == "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"


def test_content_in_parts_is_joined(server: Server) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}]
    told = server.post("/tokenize", {"messages": [{"role": "user", "content": parts}]}).json()
    assert told == server.post("/tokenize", {"messages": HELLO}).json()


def test_what_operators_see(server: Server) -> None:
    server.client().completions.create(model="tiny", prompt="x", max_tokens=8)
    until(lambda: server.state()["running"] == 0)  # what clients of other tests left has ended
    metrics = server.get("/metrics").text
    assert "outpace_ready 1.0" in metrics
    assert 'outpace_http_requests_total{path="/v1/completions",status="200"}' in metrics
    assert 'outpace_pages{kind="free"}' in metrics
    state = server.state()
    assert state["status"] == "ready" and state["slots"] == 4
    assert state["settings"]["engine"]["k"] == 3
    told = state["server"]
    assert (told["queue_limit"], told["num_keys"]) == (256, 0) and "api_key" not in told
    fingerprint = state["settings"]["fingerprint"]
    assert (fingerprint["commit"] or "")[:12] == (commit() or "")[:12]  # None outside of a checkout
    assert fingerprint["outpace"] == state["version"]
    totals = state["totals"]
    assert totals["tokens"] >= 8
    assert len(totals["drafted_at"]) == 3 and totals["drafted_at"][0] > 0
    for name in ("drafted", "accepted"):
        at = totals[f"{name}_at"]
        assert sum(at) == totals[name]
        for position, number in enumerate(at):
            assert f'outpace_{name}_at_total{{position="{position}"}} {number:.1f}\n' in metrics
    assert server.get("/health").json() == {"status": "ready"}
    assert server.get("/ready").status_code == 200


def test_a_request_has_one_log_line_with_its_id(server: Server) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 8, "ignore_eos": True, "user": "somebody"}
    response = httpx.post(server.url + "/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    line = server.line_of("mine-1")
    assert line["status"] == 200 and line["completion_tokens"] == 8 and line["user"] == "somebody"
    assert line["speculation"] == response.json()["usage"]["speculation"]
    assert min(line["sent_s"], line["engine_s"]) > 0.0
    assert line["sent_s"] + line["engine_s"] < line["first_token_s"] < line["seconds"]
    other = httpx.get(server.url + "/v1/models", headers={"X-Request-Id": "no good\tid"})
    assert other.headers["x-request-id"].startswith("req-")
