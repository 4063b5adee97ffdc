"""What a caller may hand in, in whatever form, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.test_lossless import answers
from engine.tiny import VOCAB, engine, tiny_target
from outpace import RequestError, SamplingParams


def test_numbers_may_be_of_any_type() -> None:
    llm = engine(tiny_target())
    plain = SamplingParams(max_tokens=3, temperature=0.5, seed=3, stop_token_ids=(7,))
    other = SamplingParams(max_tokens=np.int64(3), temperature=np.float32(0.5), seed=3, stop_token_ids=[np.int32(7)])  # type: ignore[arg-type]
    assert answers(llm.generate([[1, 2]], other)) == answers(llm.generate([[1, 2]], plain))


def test_prompts_may_be_any_iterables_of_integers() -> None:
    llm = engine(tiny_target())
    params = SamplingParams(max_tokens=5)
    expected = answers(llm.generate([[1, 2], [3, 4, 5]], params))
    assert answers(llm.generate(([1, 2], np.array([3, 4, 5])), params)) == expected
    assert answers(llm.generate([np.array([1, 2])], params)) == expected[:1]
    assert answers(llm.generate(iter([torch.tensor([1, 2]), (3, 4, 5)]), params)) == expected  # type: ignore[arg-type]
    assert answers(llm.generate(np.array([1, 2]), params)) == expected[:1]  # type: ignore[arg-type]
    assert llm.generate([], params) == []


@pytest.mark.parametrize(
    "prompts",
    [
        [[1], 5, [2]],
        [[1], np.array([[1, 2]])],
        [1, 2.5, 3],
        [1, True],
        [[1, "a"]],
        {"a": 1},
        [b"ab"],
        [None],
        [[[1, 2]]],
    ],
    ids=repr,
)
def test_a_prompt_of_another_kind_is_refused_and_nothing_is_left_behind(prompts: Any) -> None:
    llm = engine(tiny_target())
    with pytest.raises(RequestError):
        llm.generate(prompts)
    assert not llm.engine.busy


@pytest.mark.parametrize("params", [[None], [{}], [], {}], ids=repr)
def test_params_of_another_kind_are_refused(params: Any) -> None:
    with pytest.raises(RequestError):
        engine(tiny_target()).generate([[1]], params)


def test_a_stream_refuses_at_once_and_one_never_begun_leaves_nothing() -> None:
    llm = engine(tiny_target())
    with pytest.raises(RequestError, match="unknown"):
        llm.stream([VOCAB])
    llm.stream([1])
    assert not llm.engine.busy
