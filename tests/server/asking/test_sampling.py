"""Every field that a client may set becomes the right field of `SamplingParams`, and choices get their own seeds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from outpace import SamplingParams
from outpace.server.asking.protocol import ChatRequest, CompletionRequest, Sampling
from outpace.server.asking.sampling import FIELDS, choices, params_of

OTHERWISE = {"max_tokens", "logprobs"}
"""Set from fields that chats and completions have under different names."""


def asked(**settings: Any) -> CompletionRequest:
    return CompletionRequest(model="m", prompt="p", **settings)


def test_the_table_is_complete_on_both_sides() -> None:
    assert set(FIELDS) == set(Sampling.model_fields)
    assert {field for field, _ in FIELDS.values()} == {f.name for f in fields(SamplingParams)} - OTHERWISE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"temperature": 1.0, "max_tokens": 16}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1}, {"top_p": 0.5, "top_k": 3, "min_p": 0.1}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"], "stop_token_ids": [1]}, {"stop": ("a", "b"), "stop_token_ids": (1,)}),
        ({"logit_bias": {"7": -1}}, {"logit_bias": ((7, -1.0),)}),
        ({"bad_words": [[1, 2], [3]]}, {"bad_words": ((1, 2), (3,))}),
        ({"speculation": "off"}, {"max_k": 0}),
        ({"speculation": "auto"}, {"max_k": None}),
        ({"speculation": {"max_k": 2}}, {"max_k": 2}),
        ({"logprobs": 2}, {"logprobs": 2, "prompt_logprobs": None}),
        ({"logprobs": 2, "echo": True}, {"logprobs": 2, "prompt_logprobs": 2}),
        ({"logprobs": 2, "echo": True, "prompt_logprobs": 1}, {"prompt_logprobs": 1}),
    ],
)
def test_fields_become_parameters(given: dict[str, Any], expected: dict[str, Any]) -> None:
    params = params_of(asked(**given), room=100)
    assert {name: getattr(params, name) for name in expected} == expected


def test_a_chat_has_what_the_context_leaves() -> None:
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert params_of(ChatRequest(**chat), room=77).max_tokens == 77
    assert params_of(ChatRequest(**chat, max_tokens=5), room=77).max_tokens == 5
    assert params_of(ChatRequest(**chat, max_completion_tokens=6), room=77).max_tokens == 6
    assert params_of(ChatRequest(**chat, logprobs=True), room=77).logprobs == 0
    assert params_of(ChatRequest(**chat, logprobs=True, top_logprobs=4), room=77).logprobs == 4


def test_a_server_may_have_a_limit_for_requests_without_one() -> None:
    chat = ChatRequest(model="m", messages=[{"role": "user", "content": "x"}])
    for request in (chat, asked()):
        assert params_of(request, room=77, default_max_tokens=30).max_tokens == 30
        assert params_of(request, room=7, default_max_tokens=30).max_tokens == 7, "what the context leaves is less"
    assert params_of(asked(max_tokens=50), room=77, default_max_tokens=30).max_tokens == 50


def test_seeds_of_choices() -> None:
    seeded = [params.seed for params in choices(SamplingParams(seed=5), 50)]
    assert seeded[0] == 5 and len(set(seeded)) == 50
    assert seeded == [params.seed for params in choices(SamplingParams(seed=5), 50)]
    drawn = [params.seed for _ in range(5) for params in choices(params_of(asked(), room=9), 10)]
    assert None not in drawn and len(set(drawn)) == 50
