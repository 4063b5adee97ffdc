"""The `openai` package against the real model and its drafter: every field that a request may have.

Each request is sent five times at once: by the sync and the async client, whole and as a stream, and without
speculation. All five answers are the same, and show what the field asks for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from server.running import Server, serving

pytestmark = pytest.mark.real_model

HELLO = [{"role": "user", "content": "What is gravity? Answer in one sentence."}]
ENGINE = ("--dtype", "float32", "--control", "fixed", "--k", "4", "--max-context", "256", "--num-pages", "200")


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    with serving(Path("smollm2"), *ENGINE, "--max-rows", "8") as running:
        yield running


@dataclass(frozen=True)
class Told:
    """An answer, however it came."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    whole: Any
    """The client's object, of an answer that came whole."""

    @property
    def same(self) -> tuple[object, ...]:
        return self.texts, self.reasons, self.prompt_tokens, self.completion_tokens


def _logprobs(choice: Any) -> list[float]:
    told = choice.logprobs
    if told is None:
        return []
    if hasattr(told, "token_logprobs"):
        return [value for value in told.token_logprobs if value is not None]
    return [entry.logprob for entry in told.content]


def of_whole(answer: Any) -> Told:
    texts = tuple(c.message.content if hasattr(c, "message") else c.text for c in answer.choices)
    reasons = tuple(choice.finish_reason for choice in answer.choices)
    logprobs = tuple(value for choice in answer.choices for value in _logprobs(choice))
    return Told(texts, reasons, logprobs, answer.usage.prompt_tokens, answer.usage.completion_tokens, answer)


def of_stream(chunks: list[Any], num: int) -> Told:
    assert all(chunk.usage is None for chunk in chunks[:-1]) and not chunks[-1].choices
    texts, reasons, logprobs = [""] * num, [""] * num, [list[float]() for _ in range(num)]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            logprobs[choice.index] += _logprobs(choice)
    usage = chunks[-1].usage
    values = tuple(value for found in logprobs for value in found)
    return Told(tuple(texts), tuple(reasons), values, usage.prompt_tokens, usage.completion_tokens, None)


def five(server: Server, chat: bool, asked: dict[str, Any]) -> Told:
    """The answer to a request, told five times."""
    prompt: dict[str, Any] = {"messages": HELLO} if chat else {"prompt": "The capital of France is"}
    body = {"model": "tiny", "temperature": 0, "max_tokens": 8} | prompt | asked
    if "max_completion_tokens" in asked:
        del body["max_tokens"]
    num = body.get("n") or 1
    streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
    plain = body | {"extra_body": body.get("extra_body", {}) | {"speculation": "off"}}

    def endpoint(client: Any) -> Callable[..., Any]:
        create: Callable[..., Any] = client.chat.completions.create if chat else client.completions.create
        return create

    async def asynchronously() -> tuple[Told, Told]:
        async with server.async_client() as client:

            async def streamed() -> list[Any]:
                return [chunk async for chunk in await endpoint(client)(**streaming)]

            whole, chunks = await asyncio.gather(endpoint(client)(**body), streamed())
            return of_whole(whole), of_stream(chunks, num)

    create = endpoint(server.client())
    with ThreadPoolExecutor() as pool:
        both = pool.submit(asyncio.run, asynchronously())
        chunks = pool.submit(lambda: list(create(**streaming)))
        off = pool.submit(lambda: create(**plain))
        told = of_whole(create(**body))
        others = [of_stream(chunks.result(), num), of_whole(off.result()), *both.result()]
    for other in others:
        assert other.same == told.same
        assert other.logprobs == pytest.approx(told.logprobs, abs=1e-3)
    assert off.result().usage.model_extra["speculation"]["drafted"] == 0
    return told


def extra(**fields: Any) -> dict[str, Any]:
    """Fields that OpenAI's own API does not have."""
    return {"extra_body": fields}


def repeats_itself(told: Told) -> bool:
    """It says a long word again, which it does not of its own accord."""
    words = [word for word in told.texts[0].split() if len(word) > 6]
    return len(set(words)) < len(words)


CASES: dict[str, tuple[dict[str, Any], Callable[[Told, Told], bool]]] = {
    "nothing": ({}, lambda told, bare: told.completion_tokens == 8 and told.reasons == ("length",)),
    "temperature": ({"temperature": 1.2, "seed": 1}, lambda told, bare: told.texts != bare.texts),
    "top_p": ({"temperature": 2.0, "seed": 1, "top_p": 1e-6}, lambda told, bare: told.texts == bare.texts),
    "top_k": ({"temperature": 2.0, "seed": 1} | extra(top_k=1), lambda told, bare: told.texts == bare.texts),
    "min_p": ({"temperature": 2.0, "seed": 1} | extra(min_p=0.999), lambda told, bare: told.texts == bare.texts),
    "seed": ({"temperature": 1.0, "seed": (1 << 62) + 1}, lambda told, bare: told.texts != bare.texts),
    "n": ({"temperature": 1.5, "seed": 2, "n": 2}, lambda told, bare: told.texts[0] != told.texts[1]),
    "max_tokens": ({"max_tokens": 3}, lambda told, bare: told.completion_tokens == 3),
    "presence_penalty": ({"presence_penalty": -2.0, "max_tokens": 20}, lambda told, bare: repeats_itself(told)),
    "frequency_penalty": ({"frequency_penalty": -2.0, "max_tokens": 20}, lambda told, bare: repeats_itself(told)),
    "repetition_penalty": (extra(repetition_penalty=1.9), lambda told, bare: told.texts != bare.texts),
    "min_tokens": (extra(min_tokens=7), lambda told, bare: told.completion_tokens >= 7),
    "ignore_eos": (extra(ignore_eos=True), lambda told, bare: told.completion_tokens == 8),
    "speculation": (extra(speculation={"max_k": 2}), lambda told, bare: told.texts == bare.texts),
    "user": ({"user": "somebody"}, lambda told, bare: told.texts == bare.texts),
    "prompt_logprobs": (
        extra(prompt_logprobs=1),
        lambda told, bare: len(told.whole.choices[0].model_extra["prompt_logprobs"]) == told.prompt_tokens,
    ),
}


@pytest.fixture(scope="module")
def bare(real: Server) -> dict[bool, Told]:
    """The greedy answers, by whether it is a chat."""
    return {chat: five(real, chat, {}) for chat in (True, False)}


@pytest.mark.parametrize(
    ("name", "chat"),
    [
        *((name, True) for name in CASES),
        *((name, False) for name in ("nothing", "temperature", "n", "prompt_logprobs")),
    ],
)
def test_a_field_does_what_it_says(real: Server, bare: dict[bool, Told], name: str, chat: bool) -> None:
    asked, holds = CASES[name]
    assert holds(five(real, chat, asked), bare[chat])


def test_fields_that_speak_of_the_answer(real: Server, bare: dict[bool, Told]) -> None:
    """Stops, biases and bans of words that the answer is known to have."""
    chat, text = True, bare[True].texts[0]
    word = max(text.split()[1:-1], key=len)
    before = text[: text.index(" " + word) + 1]
    stopped = five(real, chat, {"stop": [word]})
    assert (stopped.texts[0], stopped.reasons) == (before, ("stop",))
    shown = five(real, chat, {"stop": [word]} | extra(include_stop_str_in_output=True))
    assert shown.texts[0] == before + word
    banned = five(real, chat, extra(bad_words=[word]))
    assert banned.texts[0].startswith(before.rstrip()) and not banned.texts[0].startswith(before + word)
    ids = [real.post("/tokenize", {"prompt": w}).json()["tokens"] for w in (word, " " + word)]
    assert five(real, chat, extra(bad_words=ids)).texts == banned.texts
    (token, *_) = ids[1]
    assert five(real, chat, {"logit_bias": {str(token): -100}}).texts[0] != text
    ended = five(real, chat, extra(stop_token_ids=[token]))
    assert ended.reasons == ("stop",) and ended.texts[0] == before.rstrip(" ")


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "old": {"type": "boolean"}},
    "required": ["city", "old"],
    "additionalProperties": False,
}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}, "max_tokens": 60},
        r'\{\s*"city"\s*:\s*"(Paris|Rome)"\s*,\s*"old"\s*:\s*(true|false)\s*\}',
    ),
    "json_object": ({"response_format": {"type": "json_object"}}, r"\{(.|\n)*"),
    "text": ({"response_format": {"type": "text"}}, r"(.|\n)+"),
    "json": (extra(structured_outputs={"json": {"const": "g"}}), '"g"'),
    "regex": (extra(structured_outputs={"regex": r"[A-Z][a-z]{2,4}-\d"}), r"[A-Z][a-z]{2,4}-\d"),
    "choice": (extra(structured_outputs={"choice": ["It falls", "It flies"]}), "It falls|It flies"),
    "grammar": (extra(structured_outputs={"grammar": 'root ::= ("yes" | "no") [!?]'}), "(yes|no)[!?]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_has_its_form(real: Server, form: str) -> None:
    asked, pattern = FORMS[form]
    told = five(real, True, asked)
    assert re.fullmatch(pattern, told.texts[0])
    assert told.reasons == ("stop",) or form in ("json_object", "text")


def test_logprobs_of_a_chat(real: Server) -> None:
    told = five(real, True, {"logprobs": True, "top_logprobs": 3})
    entries = told.whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == told.texts[0]
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)


def test_logprobs_and_echo_of_a_completion(real: Server) -> None:
    told = five(real, False, {"logprobs": 3, "echo": True})
    assert told.texts[0].startswith("The capital of France is Paris")
    found = told.whole.choices[0].logprobs
    assert found.token_logprobs[0] is None and len(found.tokens) == told.prompt_tokens + told.completion_tokens
    assert "".join(found.tokens) == told.texts[0]


def test_max_completion_tokens(real: Server) -> None:
    assert five(real, True, {"max_completion_tokens": 5}).completion_tokens == 5


def test_usage_says_what_speculation_came_to(real: Server) -> None:
    told = real.client().completions.create(model="tiny", prompt="1, 2, 3, 4,", max_tokens=40, temperature=0)
    speculation = told.usage.model_extra["speculation"]
    assert speculation["accept_length"] > 1.5
    assert speculation["emitted"] == 39
    assert speculation["drafted"] >= speculation["accepted"] > 0


UNSUPPORTED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "functions": [],
    "function_call": "auto",
    "reasoning_effort": "low",
    "web_search_options": {},
    "verbosity": "low",
}
TAKEN: dict[str, Any] = {
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "a"},
    "service_tier": "auto",
    "store": True,
    "metadata": {"a": "b"},
    "verbosity": "medium",
}
"""By the package's own names: they change no answer."""


@pytest.mark.parametrize("field", [*UNSUPPORTED, "best_of", "suffix"])
def test_what_is_not_supported_is_named(real: Server, field: str) -> None:
    client = real.client()
    chat: dict[str, Any] = {"messages": HELLO, "extra_body": {field: UNSUPPORTED.get(field)}}
    create, asked = client.chat.completions.create, chat
    if field not in UNSUPPORTED:
        create, asked = client.completions.create, {"prompt": "a", "extra_body": {field: 2}}
    with pytest.raises(openai.BadRequestError, match=field) as caught:
        create(model="tiny", **asked)
    assert caught.value.param.startswith(field)


def test_what_changes_no_answer_is_taken(real: Server) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    create = real.client().chat.completions.create
    assert create(**asked, **TAKEN).choices == create(**asked).choices
