"""Answers in a given form, asked for with the `openai` package; `jsonschema` and `re` say whether they have it."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from server.running import Server, until

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SPACES = {str(sorted(ByteLevel.alphabet()).index(character)): -100.0 for character in "ĠĊĉč"}
"""A random model likes them too well."""
HELLO = [{"role": "user", "content": "Describe a pet."}]


def form(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}


def ask(server: Server, **options: Any) -> Any:
    settings = {"model": "tiny", "messages": HELLO, "max_tokens": 100, "temperature": 0.8}
    settings |= {"seed": 3, "logit_bias": SPACES}
    settings |= options
    return server.client().chat.completions.create(**settings)


def test_a_schema_is_followed_with_and_without_speculation(server: Server) -> None:
    found = [
        ask(server, response_format=form(SCHEMA), extra_body={"speculation": policy}).choices
        for policy in ("off", "auto", {"max_k": 1})
    ]
    for (choice,) in found:
        assert choice.message.content == found[0][0].message.content
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_a_schema_is_followed_in_streams_and_in_several_choices(server: Server) -> None:
    whole = ask(server, response_format=form(SCHEMA), n=3)
    assert len({choice.message.content for choice in whole.choices}) > 1
    texts = ["", "", ""]
    for chunk in ask(server, response_format=form(SCHEMA), n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_an_object_that_max_tokens_cuts_says_so(server: Server) -> None:
    answer = ask(server, response_format=form(SCHEMA), max_tokens=5).choices[0]
    assert answer.message.content.startswith("{")
    assert answer.finish_reason == "length"
    assert ask(server, response_format={"type": "text"}).choices[0].finish_reason


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"[a-f]{3,5}-\d\d"}, r"[a-f]{3,5}-\d\d"),
        ({"choice": ["yes", "no", "ñandú"]}, "yes|no|ñandú"),
        ({"grammar": 'root ::= "<" inner ">"\ninner ::= [0-9] | "(" inner ")"'}, r"<(\(*)\d(\)*)>"),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": '{"const": 5}'}, "5"),
    ],
)
def test_other_forms_as_clients_of_vllm_ask_for_them(server: Server, outputs: dict[str, Any], pattern: str) -> None:
    client = server.client()
    for temperature in (0.0, 1.0):
        texts = {
            client.completions.create(
                model="tiny",
                prompt="Hello",
                max_tokens=80,
                temperature=temperature,
                seed=1,
                extra_body={"structured_outputs": outputs, "speculation": policy, "min_tokens": 1},
            )
            .choices[0]
            .text
            for policy in ("off", "auto")
        }
        (text,) = texts
        assert re.fullmatch(pattern, text), text


def test_a_bad_form_is_refused_by_name_and_stalls_nobody(server: Server) -> None:
    """Asked at the same time as answers that are fine."""

    async def both() -> tuple[list[Any], list[Any]]:
        client = server.async_client()

        def one(**options: Any) -> Any:
            settings = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "temperature": 0} | options
            return client.chat.completions.create(**settings)

        wrong = {"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "string"}}}}
        rules = ["root ::= a0", *(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)), 'a40 ::= "x"']
        slow = {"structured_outputs": {"grammar": "\n".join(rules)}}
        bad = [one(response_format=form(wrong)), one(extra_body=slow)]
        good = [one(response_format={"type": "json_object"}), one()]
        async with client:
            found = await asyncio.gather(*bad, *good, return_exceptions=True)
        return found[:2], found[2:]

    bad, good = asyncio.run(both())
    assert all(isinstance(error, openai.BadRequestError) for error in bad), bad
    assert "contains" in str(bad[0]) and bad[0].param == "response_format"
    assert bad[1].param == "structured_outputs"
    assert all(answer.choices[0].message.content for answer in good), good


def test_schemas_that_take_too_long_are_refused_and_hold_up_nobody(server: Server) -> None:
    hostile = {"type": "string", "allOf": [{"pattern": f"[ab]*a[ab]{{{i}}}$"} for i in range(1, 41)]}
    bodies = [
        {"response_format": form(hostile | {"description": "a"})},
        {"structured_outputs": {"json": hostile | {"description": "b"}}, "stream": True},
    ]
    asked = {"model": "tiny", "messages": HELLO}
    with ThreadPoolExecutor() as pool:
        told = [pool.submit(server.post, "/v1/chat/completions", asked | body) for body in bodies]
        until(lambda: server.state()["running"] >= 2, server)
        answer = ask(server, response_format=form({"enum": ["cat", "dog", "cow"]}), max_tokens=10)
        assert answer.choices[0].message.content in ('"cat"', '"dog"', '"cow"')
        assert not any(each.done() for each in told)
        for each, field in zip(told, ("response_format", "structured_outputs"), strict=True):
            error = each.result().json()["error"]
            assert (each.result().status_code, error["param"]) == (400, field)
            assert re.search(r"more than (2 s of a core|\d+ MiB); make it simpler", error["message"])
