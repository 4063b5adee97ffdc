"""Usage is counted in tokens: held against the tokens themselves, whatever was asked, told whole or in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outpace import LLM, SamplingParams
from server.running import Server, serving, until

PATH = "/v1/completions"
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 1}
ENDS = list(range(97, 123))
"""Ids of small letters, a tenth of the vocabulary."""
KINDS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "one token": {"max_tokens": 1},
    "sampled": SAMPLED,
    "choices": SAMPLED | {"n": 3},
    "prompts": {"prompt": ["abc", "abcdefghij", "k"]},
    "ids, choices": SAMPLED | {"prompt": [[1, 2, 3], [4, 5]], "n": 2},
    "echo": {"echo": True},
    "echo with logprobs": {"echo": True, "logprobs": 2, "n": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "stop string": {"stop": ["e", "i", "t"], "max_tokens": 60},
    "stop string kept": {"stop": ["e", "i", "t"], "max_tokens": 60, "include_stop_str_in_output": True},
    "stop tokens": SAMPLED | {"stop_token_ids": ENDS, "max_tokens": 60, "n": 3},
    "min_tokens": {"stop_token_ids": ENDS, "min_tokens": 20, "max_tokens": 60},
    "the end": SAMPLED | {"logit_bias": {"257": 7}, "max_tokens": 60, "n": 3},
    "past the end": {"logit_bias": {"257": 100}, "ignore_eos": True},
    "penalties": SAMPLED | {"presence_penalty": 1.5, "repetition_penalty": 1.2},
    "bad words": {"bad_words": ["e", [65]]},
    "a regex": SAMPLED | {"structured_outputs": {"regex": "[a-c]{5,9}"}},
    "a choice": {"structured_outputs": {"choice": ["alpha", "beta"]}, "n": 2},
}


def body_of(name: str, policy: str) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": "Hello there", "max_tokens": 20, "temperature": 0, "logprobs": 0}
    return asked | KINDS[name] | {"speculation": policy}


def ask(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post(PATH, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, each with the usage so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = server.post(PATH, body | {"stream": True, "stream_options": options}).text
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


def num_prompt(server: Server, body: dict[str, Any]) -> int:
    """Tokens of its prompts."""
    prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
    return sum(
        server.post("/tokenize", {"prompt": p}).json()["count"] if isinstance(p, str) else len(p) for p in prompts
    )


def num_told(choices: list[dict[str, Any]]) -> int:
    """Tokens that choices, or parts of them, have log-probabilities of."""
    return sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"])


def check_speculation(usage: dict[str, Any], num_begun: int) -> None:
    """What holds between the counts: each answer's first token was prefill's, all others a cycle's."""
    told = usage["speculation"]
    emitted = usage["completion_tokens"] - num_begun
    assert told["emitted"] == emitted
    drafting = sum(told["drafted_at"][:1])
    plain = told["cycles"] - drafting
    assert told["accept_length"] == (round((emitted - plain) / drafting, 4) if drafting else None)
    assert told["cycles"] <= emitted <= told["cycles"] + told["accepted"] or not emitted
    for name in ("drafted", "accepted"):
        at = told[f"{name}_at"]
        assert sum(at) == told[name] and at == sorted(at, reverse=True)
    assert all(a <= d <= told["cycles"] for a, d in zip(told["accepted_at"], told["drafted_at"], strict=True))


@pytest.mark.parametrize("policy", ["off", "auto"])
@pytest.mark.parametrize("name", KINDS)
def test_counts_are_the_tokens(server: Server, name: str, policy: str) -> None:
    body = body_of(name, policy)
    answer, prompt = ask(server, body), num_prompt(server, body)
    usage, choices = answer["usage"], answer["choices"]
    echoed = prompt * body.get("n", 1) if body.get("echo") else 0
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == num_told(choices) - echoed
    assert usage["total_tokens"] == prompt + usage["completion_tokens"]
    check_speculation(usage, len(choices))
    assert bool(usage["speculation"]["drafted"]) is (policy == "auto" and usage["speculation"]["cycles"] > 0)
    bare = ask(server, {key: value for key, value in body.items() if key != "logprobs" or body.get("echo")})
    assert bare["usage"]["completion_tokens"] == usage["completion_tokens"]


@pytest.mark.parametrize("policy", ["off", "auto"])
@pytest.mark.parametrize("name", KINDS)
def test_counts_of_a_stream_are_those_of_what_it_told(server: Server, name: str, policy: str) -> None:
    body = body_of(name, policy)
    whole, chunks = ask(server, body), events(server, body)
    prompt = whole["usage"]["prompt_tokens"]
    *parts, last = chunks
    assert last["choices"] == [] and [part for part in parts if len(part["choices"]) != 1] == []
    begun: set[int] = set()
    told, echoed = 0, 0
    for part in parts:
        (choice,) = part["choices"]
        told += num_told(part["choices"])
        if choice["index"] not in begun:
            begun.add(choice["index"])
            ids = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][choice["index"] % 2]
            echoed += len(ids) if body.get("echo") else 0
        assert part["usage"]["completion_tokens"] == told - echoed
        assert part["usage"]["prompt_tokens"] == prompt
        check_speculation(part["usage"], len(begun))
    told_whole, told_last = ({k: u["usage"][k] for k in u["usage"] if k.endswith("_tokens")} for u in (whole, last))
    assert told_whole == told_last
    assert last["usage"]["speculation"] == parts[-1]["usage"]["speculation"]


@pytest.mark.parametrize("name", KINDS)
def test_counts_are_the_same_with_and_without_speculation(server: Server, name: str) -> None:
    off, auto = (ask(server, body_of(name, policy)) for policy in ("off", "auto"))
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert off["usage"][field] == auto["usage"][field]
    assert [c["finish_reason"] for c in off["choices"]] == [c["finish_reason"] for c in auto["choices"]]


def test_counts_are_the_engines_own(server: Server, model: Path) -> None:
    """A stop string ends an answer within a run of tokens, of which those up to its last count."""
    llm = LLM(str(model), drafter=None, num_pages=400)
    for stop in ((), ("e", "i", "t")):
        (result,) = llm.generate(["Hello there"], SamplingParams(max_tokens=60, stop=stop))
        for policy in ("off", "auto"):
            body = body_of("nothing else", policy) | {"max_tokens": 60, "stop": list(stop)}
            assert ask(server, body)["usage"]["completion_tokens"] == len(result.token_ids)


def totals(server: Server) -> dict[str, int]:
    """Counters of /metrics."""
    found = re.findall(r"^outpace_(\w+)_total ([\d.]+)$", server.get("/metrics").text, re.MULTILINE)
    return {name: int(float(value)) for name, value in found}


def test_metrics_grow_by_what_answers_say(server: Server) -> None:
    before, usages = totals(server), []
    for name in ("sampled", "choices", "stop string", "stop tokens"):
        usages += [ask(server, body_of(name, "auto"))["usage"], events(server, body_of(name, "off"))[-1]["usage"]]
    after = totals(server)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["tokens"] == sum(usage["completion_tokens"] for usage in usages)
    for name in ("cycles", "drafted", "accepted"):
        assert grown[name] == sum(usage["speculation"][name] for usage in usages)


def test_cached_tokens_are_whole_pages_of_the_prompt(server: Server) -> None:
    page = server.state()["settings"]["engine"]["page_size"]
    prompt = "Tell me of it once more. " * 4
    length, reused = len(prompt), totals(server)["reused"]
    cached = [
        ask(server, body_of("nothing else", "auto") | {"prompt": text})["usage"]["prompt_tokens_details"]
        for text in (prompt, prompt, prompt[: 2 * page] + "!", [prompt, prompt])
    ]
    most = (length - 1) // page * page
    assert [told["cached_tokens"] for told in cached] == [0, most, 2 * page, 2 * most]
    assert totals(server)["reused"] - reused == 3 * most + 2 * page


def test_a_client_that_leaves_is_counted_as_far_as_the_engine_came(server: Server) -> None:
    body = body_of("nothing else", "auto") | {"max_tokens": 140, "ignore_eos": True}
    before = totals(server)
    stream = server.client().completions.create(
        **{key: body[key] for key in ("model", "prompt", "max_tokens")}, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    until(lambda: server.state()["running"] == 0)
    line = server.line_of(stream.response.headers["x-request-id"])
    assert 0 < line["completion_tokens"] < 140 and line["prompt_tokens"] == 11
    assert totals(server)["tokens"] - before["tokens"] == line["completion_tokens"]


@pytest.fixture(scope="module")
def tight(model: Path, drafter: Path) -> Iterator[Server]:
    """Pages for one answer and a half."""
    flags = ("--control", "fixed", "--k", "3", "--page-size", "4", "--num-pages", "40", "--max-rows", "4")
    with serving(model, "--drafter", str(drafter), *flags, "--max-context", "120") as running:
        yield running


@pytest.mark.parametrize("policy", ["off", "auto"])
def test_a_preempted_answer_is_counted_once(tight: Server, policy: str) -> None:
    """What it finds of its own when it starts over was not cached for it."""

    def one(place: int) -> dict[str, Any]:
        prompt = f"{place} {policy} " + "abcdefgh" * 3
        body = {"prompt": prompt, "max_tokens": 60, "seed": place, "temperature": 1.0, "ignore_eos": True}
        return ask(tight, body_of("nothing else", policy) | body)

    before = totals(tight)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(one, range(4)))
    after = totals(tight)
    assert after["preemptions"] > before["preemptions"] and after["tokens"] - before["tokens"] == 240
    assert after["reused"] == before["reused"]
    for answer in answers:
        usage = answer["usage"]
        assert usage["completion_tokens"] == num_told(answer["choices"]) == 60
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        told = usage["speculation"]
        assert told["cycles"] <= usage["completion_tokens"] - 1
