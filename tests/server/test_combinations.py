"""Any combination of fields: no failure, no hang; a stream is the whole in pieces, and drafts change nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.tool_templates import QWEN25_TOOLS
from server.models import make_drafter, make_model
from server.running import Server, certificates, serving

NUM_EXAMPLES = 60
SECONDS = 120
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
STATUSES: Counter[tuple[str, int]] = Counter()

OBJECT = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}
FORMS = (
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": OBJECT}}},
    {"structured_outputs": {"regex": "(ab|é|日){2,20}"}},
    {"structured_outputs": {"choice": ["yes", "no", "né"]}},
    {"structured_outputs": {"grammar": 'root ::= "(" root ")" | "x"'}},
)
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": OBJECT, "strict": strict}}
    | ({"cache_control": {"type": "ephemeral"}} if strict else {})
    for strict in (True, False)
]
TOKEN = st.integers(0, 257)
TEXT = st.text(st.sampled_from('abcxyz \n{"}<>é日😀'), max_size=12)

SAMPLED: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.5, 1, 1.7]),
    "top_p": st.sampled_from([0.3, 0.9, 1]),
    "top_k": st.sampled_from([-1, 0, 1, 7]),
    "min_p": st.sampled_from([0, 0.05, 0.5]),
    "n": st.integers(1, 3),
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "stop_token_ids": st.lists(TOKEN, max_size=6),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 20),
    "max_tokens": st.integers(1, 40),
    "presence_penalty": st.sampled_from([-2, 0, 1.5]),
    "frequency_penalty": st.sampled_from([-1, 0, 2]),
    "repetition_penalty": st.sampled_from([0.7, 1, 1.6]),
    "logit_bias": st.dictionaries(TOKEN.map(str), st.sampled_from([-100, -3, 4, 100]), max_size=4),
    "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=2) | TEXT, max_size=3),
    "prompt_logprobs": st.integers(0, 2),
    "user": TEXT,
    "store": st.booleans(),
    "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
}
COMPLETED = SAMPLED | {
    "prompt": TEXT | st.lists(TOKEN, min_size=1, max_size=9) | st.lists(TEXT, min_size=1, max_size=3),
    "logprobs": st.integers(0, 3),
    "echo": st.booleans(),
    "best_of": st.integers(1, 2),
}
CHATTED = SAMPLED | {
    "max_completion_tokens": st.integers(1, 40),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 3),
    "tools": st.lists(st.sampled_from(TOOLS), max_size=1),
    "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "look"}}]),
    "parallel_tool_calls": st.booleans(),
}


def bodies(fields: dict[str, st.SearchStrategy[Any]], **always: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of all, now and then with null or with a form."""
    some = st.lists(st.sampled_from(sorted(fields)), max_size=7, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] | st.none() for name in names})
    )
    forms = st.sampled_from([{}, {}, *FORMS])

    def body(drawn: tuple[dict[str, Any], dict[str, Any], int]) -> dict[str, Any]:
        fields, form, seed = drawn
        limit = {} if fields.get("max_completion_tokens") else {"max_tokens": 20}  # two that differ are refused
        return {"model": "tiny", "seed": seed} | limit | always | fields | form

    return st.tuples(some, forms, st.integers(0, 99)).map(body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("combined")
    model = make_model(folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": QWEN25_TOOLS}))
    drafter = make_drafter(model, folder / "drafter")
    flags = ("--num-pages", "300", "--max-rows", "8", "--control", "fixed", "--k", "3", "--dtype", "float32")
    with serving(model, "--drafter", str(drafter), *flags) as running:
        yield running
        assert running.held_pages() == 0 and running.state()["engine_deaths"] == 0


def post(client: httpx.Client, served: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    response = client.post(served.url + path, json=body, timeout=SECONDS)
    STATUSES[path, response.status_code] += 1
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"], response.text
    return response


def told(choice: dict[str, Any]) -> dict[str, Any]:
    """What a choice says, in one form for both kinds of completion."""
    message = choice.get("message", choice)
    logprobs = choice["logprobs"] or {}
    entries = logprobs.get("content") or []
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return {
        "text": message.get("text", message.get("content")) or "",
        "calls": calls,
        "reason": choice["finish_reason"],
        "tokens": logprobs.get("tokens", [entry["token"] for entry in entries]),
        "logprobs": logprobs.get("token_logprobs", [entry["logprob"] for entry in entries]),
        "prompt": [entry and entry["logprob"] for entry in choice.get("prompt_logprobs") or ()],
    }


def joined(chunks: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The choices that a stream told, as one that is told whole has them."""
    choices = [told({"finish_reason": None, "logprobs": None}) for _ in range(count)]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice.get("delta", choice)
        calls = delta.pop("tool_calls", [])
        part, whole = told(choice | {"message": delta}), choices[choice["index"]]
        for call in calls:
            if call["index"] == len(whole["calls"]):
                whole["calls"].append(("", ""))
            name, arguments = whole["calls"][call["index"]]
            function = call["function"]
            whole["calls"][call["index"]] = (name + function.get("name", ""), arguments + function["arguments"])
        assert whole["reason"] is None, "nothing comes behind the end"
        for name in ("text", "tokens", "logprobs", "prompt"):
            whole[name] += part[name]
        whole["reason"] = part["reason"]
    return choices


def check_same(one: list[dict[str, Any]], other: list[dict[str, Any]], *names: str) -> None:
    for a, b in zip(one, other, strict=True):
        for name in names:
            assert a[name] == b[name], name
        for name in ("logprobs", "prompt"):
            for x, y in zip(a[name], b[name], strict=True):
                assert (x is None) is (y is None) and (x is None or x == pytest.approx(y, abs=1e-3))


def refusal(response: httpx.Response) -> Any:
    """Of a stream; one that a grammar leaves no token to go on with has begun, and ends with it."""
    if response.status_code == 400:
        return response.json()
    return json.loads(response.text.rstrip().rpartition("data: ")[2])


def check(client: httpx.Client, served: Server, path: str, body: dict[str, Any]) -> None:
    """One combination, four ways."""
    answers, usages = [], []
    for policy in ("off", "auto"):
        asked = body | {"speculation": policy}
        whole = post(client, served, path, asked)
        options = {"include_usage": True, "continuous_usage_stats": body["seed"] % 2 == 0}
        stream = post(client, served, path, asked | {"stream": True, "stream_options": options})
        if whole.status_code == 400:
            assert whole.json() == refusal(stream)
            continue
        answer = whole.json()
        choices = [told(choice) for choice in answer["choices"]]
        assert stream.text.endswith("data: [DONE]\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in stream.text.split("\n\n")[:-2]]
        assert all("choices" in chunk for chunk in chunks), stream.text[-500:]
        parts = joined(chunks, len(choices))
        if not any(choice["calls"] for choice in parts):  # a call that broke off is text if it is told whole
            check_same(choices, parts, "text", "calls", "reason", "tokens")
        counts = {name: value for name, value in answer["usage"].items() if name.endswith("_tokens")}
        assert {name: chunks[-1]["usage"][name] for name in counts} == counts
        answers.append(choices)
        usages.append(counts)
    assert len(answers) in (0, 2)
    if answers:
        check_same(*answers, "text", "calls", "reason", "tokens")
        assert usages[0] == usages[1]


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
def test_any_combination(served: Server, path: str) -> None:
    always: dict[str, Any] = {"prompt": "abc"}
    if path == CHAT:
        always = {"messages": [{"role": "user", "content": "Look, é!"}]}
    with httpx.Client(verify=certificates()) as client:

        @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(body=bodies(COMPLETED if path == COMPLETE else CHATTED, **always))
        def one(body: dict[str, Any]) -> None:
            check(client, served, path, body)

        one()
    assert STATUSES[path, 200] > STATUSES[path, 400] / 2 > 0, STATUSES
