"""What a request must fit into, and that a long prompt is looked through in little time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.tiny import engine, tiny_target
from outpace import RequestError, SamplingParams
from outpace.engine import limits as module
from outpace.engine.limits import Limits

VOCAB = 100
LIMITS = Limits(vocab_size=VOCAB, eos_token_ids=(), max_context=2_000_000, page_size=16, num_pages=200_000)


def refusal(prompt_ids: Any, **params: Any) -> str:
    with pytest.raises(RequestError) as refused:
        LIMITS.check(prompt_ids, SamplingParams(**params))
    return str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        VOCAB,
        1 << 31,
        1 << 32,
        (1 << 32) + 5,
        -(1 << 40),
        1 << 70,
        1.5,
        "7",
        None,
        np.int64(VOCAB),
        torch.tensor(1.5),
    ],
)
def test_the_first_wrong_id_is_named_with_its_place(wrong: Any) -> None:
    told = f"prompt[2]: token id {wrong!s} is unknown; ids are 0 … 99"
    for prompt_ids in ([1, 2, wrong], (1, 2, wrong, 3, VOCAB)):
        assert refusal(prompt_ids) == told


def test_other_lists_of_ids_are_named_too() -> None:
    assert refusal([1], stop_token_ids=(5, VOCAB)).startswith("stop_token_ids[1]: token id 100")
    assert refusal([1], logit_bias={3: 1.0, -4: 1.0}).startswith("logit_bias[1]: token id -4")
    assert refusal([1], bad_words=((1,), (2, VOCAB))).startswith("bad_words[1][1]: token id 100")


@given(st.lists(st.integers(-3, VOCAB + 3), min_size=1))
def test_ids_pass_that_the_vocabulary_has_and_no_others(prompt_ids: list[int]) -> None:
    wrong = [place for place, token in enumerate(prompt_ids) if not 0 <= token < VOCAB]
    if wrong:
        assert f"prompt[{wrong[0]}]: token id {prompt_ids[wrong[0]]} is" in refusal(prompt_ids)
    else:
        assert LIMITS.check(prompt_ids, SamplingParams(max_tokens=7)) == 7


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_ids_of_every_kind_of_integer_pass(kind: type) -> None:
    assert LIMITS.check([kind(0), kind(VOCAB - 1)], SamplingParams(max_tokens=7)) == 7


class Id(int):
    """That counts how often Python code compares it."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Id.compared += 1
        return int(self) < other

    __gt__ = __le__ = __ge__ = __lt__


def test_a_good_prompt_is_looked_through_by_no_python() -> None:
    """A million ids took 18 ms of the engine's thread, twice, while others waited for their tokens; now 4 ms, once."""
    LIMITS.check([Id(7)] * 50, SamplingParams())
    assert Id.compared == 0


def test_an_answer_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    all_below = module._all_below

    def counting(limit: int, token_ids: Any) -> bool:
        checked.append(len(token_ids))
        return all_below(limit, token_ids)

    monkeypatch.setattr(module, "_all_below", counting)
    llm = engine(tiny_target())
    llm.generate([[1] * 37], SamplingParams(max_tokens=2))
    assert checked.count(37) == 1
