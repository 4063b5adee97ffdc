"""What `SamplingParams` takes and refuses: every message names the field, the value and the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outpace import RequestError, SamplingParams


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"presence_penalty": 2.1}, ("presence_penalty", "2.1", "-2 … 2")),
        ({"presence_penalty": float("nan")}, ("presence_penalty", "nan")),
        ({"frequency_penalty": -3}, ("frequency_penalty", "-3", "-2 … 2")),
        ({"frequency_penalty": "1"}, ("frequency_penalty", "'1'", "number")),
        ({"repetition_penalty": 0}, ("repetition_penalty", "0", "10")),
        ({"repetition_penalty": 10.5}, ("repetition_penalty", "10.5", "10")),
        ({"repetition_penalty": True}, ("repetition_penalty", "True")),
        ({"min_tokens": -1}, ("min_tokens", "-1")),
        ({"min_tokens": 9, "max_tokens": 8}, ("min_tokens", "9", "max_tokens, 8")),
        ({"min_tokens": 1.5}, ("min_tokens", "1.5", "integer")),
        ({"logit_bias": {3: 101}}, ("logit_bias of token 3", "101", "-100 … 100")),
        ({"logit_bias": {3: float("inf")}}, ("logit_bias of token 3", "inf")),
        ({"logit_bias": {3: None}}, ("logit_bias of token 3", "None")),
        ({"logit_bias": {"3": 1.0}}, ("logit_bias", "'3'", "token ids")),
        ({"logit_bias": {3.0: 1.0}}, ("logit_bias", "3.0", "token ids")),
        ({"logit_bias": {True: 1.0}}, ("logit_bias", "True")),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, ("logit_bias", "token 3", "once")),
        ({"logit_bias": ((3,),)}, ("logit_bias", "(3,)")),
        ({"logit_bias": 5}, ("logit_bias", "5", "-100 … 100")),
        ({"logit_bias": "5"}, ("logit_bias", "'5'")),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, ("logit_bias", "1025", "1024")),
        ({"bad_words": [[1]] * 65}, ("bad_words", "65", "64")),
        ({"bad_words": [[1], list(range(17))]}, ("bad_words[1]", "17", "16")),
        ({"bad_words": [[1], []]}, ("bad_words[1]", "empty", "16")),
        ({"bad_words": [1]}, ("bad_words[0]", "1")),
        ({"bad_words": ["word"]}, ("bad_words[0]", "'word'", "token ids")),
        ({"bad_words": "word"}, ("bad_words", "'word'", "64")),
        ({"bad_words": [[1.5]]}, ("bad_words[0]", "1.5")),
        ({"bad_words": None}, ("bad_words", "None")),
        ({"logprobs": 21}, ("logprobs", "21", "20")),
        ({"logprobs": -1}, ("logprobs", "-1", "20")),
        ({"logprobs": True}, ("logprobs", "True", "20")),
        ({"prompt_logprobs": 21}, ("prompt_logprobs", "21", "20")),
        ({"prompt_logprobs": 1.0}, ("prompt_logprobs", "1.0", "20")),
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_what_is_kept_is_frozen_and_takes_numbers_of_any_type() -> None:
    given = {np.int64(7): np.float32(0.5), 3: -1}
    params = SamplingParams(logit_bias=given, bad_words=[[np.int32(4), 5], (6,)])
    given[9] = 1
    assert params.logit_bias == ((7, 0.5), (3, -1.0))
    assert params.bad_words == ((4, 5), (6,))
    same = SamplingParams(logit_bias=((7, 0.5), (3, -1.0)), bad_words=((4, 5), (6,)))
    assert params == same and hash(params) == hash(same)


def test_what_changes_logits_is_known() -> None:
    assert not SamplingParams(temperature=1.0, top_k=4, logprobs=3, prompt_logprobs=1, stop_token_ids=(1,)).processed
    for settings in (
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 0.9},
        {"logit_bias": {1: 0.0}},
        {"bad_words": ((1,),)},
        {"min_tokens": 1},
    ):
        assert SamplingParams(**settings).processed  # type: ignore[arg-type]
