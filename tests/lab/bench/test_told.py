"""What answers tell of their speculation, in the forms that the engines send.

vLLM's is the capture in llama-swap's issue 1032 and vLLM's PR 48915; SGLang's are those of its PR 33518 and of its
usage_processor.py; llama.cpp's is that of its PR 12603.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from outpace.lab.bench.answer import Answer, Speculation
from outpace.lab.bench.asks import Ask
from outpace.lab.bench.exposed import of_requests
from outpace.lab.bench.stream import Stream

VLLM = {
    "mean_acceptance_length": 1.2325581395348837,
    "draft_acceptance_rate": 0.07751937984496124,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
SGLANG = {
    "spec_accept_rate": 0.2930232558139535,
    "spec_accept_length": 2.4651162790697674,
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}


def answered(*events: dict[str, Any] | str) -> Answer:
    stream = Stream(Ask(id="a", set="s", messages=()), 0.0, max_tokens=1000)
    for place, event in enumerate(events):
        stream.event(float(place), event if isinstance(event, str) else json.dumps(event))
    return stream.answer(9.0)


def told(tokens: int, last: dict[str, Any], details: Any = None) -> Speculation | None:
    text = {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "completion_tokens_details": details}
    return answered(text, end, {"choices": [], "usage": usage, **last}, "[DONE]").speculation


def test_vllm() -> None:
    assert told(54, {"metrics": {"speculative_decoding": VLLM}}) == Speculation(
        emitted=53, cycles=43, drafted=129, accepted=10, accepted_at=(4.0, 3.0, 3.0)
    )
    sparse = VLLM | {"acceptance_histogram": {"0": 39, "1": 1, "3": 3}}
    assert told(54, {"metrics": {"speculative_decoding": sparse}}) == told(
        54, {"metrics": {"speculative_decoding": VLLM}}
    )


def test_drafts_behind_the_end_do_not_reach_the_user() -> None:
    cut = told(50, {"metrics": {"speculative_decoding": VLLM}})
    assert cut is not None and cut.emitted == 49 and cut.accepted == 10


def test_sglang_when_it_is_asked() -> None:
    assert told(106, {"sglext": {"spec_tokens_details": SGLANG}}) == Speculation(
        emitted=105, cycles=43, drafted=215, accepted=63, accepted_at=(32.0, 18.0, 7.0, 3.0, 3.0)
    )
    alone = {"choices": [], "sglext": {"spec_tokens_details": SGLANG}}
    text = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 106}}
    found = answered(text, alone, usage).speculation
    assert found is not None and found.cycles == 43, "an event of its own, before the usage"


OURS = {"accept_length": 2.5, "cycles": 40, "drafted": 60, "accepted": 50}


def test_ours_tells_where_it_drafted() -> None:
    """Plain steps are cycles that judged no draft: they say nothing of the drafter."""

    def ours(**places: Any) -> Speculation | None:
        usage = {"prompt_tokens": 5, "completion_tokens": 101, "speculation": OURS | places}
        text = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
        return answered(text, {"choices": [], "usage": usage}).speculation

    def by_position(*told: Speculation | None) -> tuple[float, ...]:
        found = of_requests(
            [Answer(id=str(n), set="s", sent_s=0.0, ended_s=1.0, speculation=each) for n, each in enumerate(told)]
        )
        assert found is not None
        return found.by_position

    some = ours(drafted_at=[20, 20, 20], accepted_at=[20, 18, 12])
    assert some is not None and (some.emitted, some.accepted_at) == (100, (20.0, 18.0, 12.0))
    assert by_position(some) == (1.0, 0.9, 0.6)
    plain = ours(drafted=0, accepted=0, accept_length=1.0, drafted_at=[], accepted_at=[])
    assert by_position(some, plain) == (1.0, 0.9, 0.6)
    assert by_position(plain) == ()
    assert by_position(some, ours(drafted_at="x", accepted_at=[1, "2"])) == (), "places of some are not those of all"


def test_counts_alone_imply_the_cycles() -> None:
    details = {"reasoning_tokens": 0, "accepted_prediction_tokens": 60, "rejected_prediction_tokens": 100}
    expected = Speculation(emitted=100, cycles=40, drafted=160, accepted=60)
    assert told(101, {}, details) == expected
    assert told(101, {"timings": {"predicted_n": 101, "draft_n": 160, "draft_n_accepted": 60}}) == expected


@pytest.mark.parametrize(
    "details",
    [
        None,
        {"reasoning_tokens": 18},
        {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        {"accepted_prediction_tokens": None, "rejected_prediction_tokens": 4},
        [1],
    ],
)
def test_a_server_that_does_not_speculate_tells_nothing(details: Any) -> None:
    """OpenAI's own zeros are of predicted outputs that nobody gave."""
    assert told(101, {"metrics": {"time_to_first_token": 0.1}, "sglext": {"routed_experts": "x"}}, details) is None


@pytest.mark.parametrize("wrong", [7, "x", [VLLM], {"num_spec_steps": "43"}, VLLM | {"num_spec_steps": None}, {}])
def test_what_is_no_such_thing_is_not_guessed_at(wrong: Any) -> None:
    assert told(101, {"metrics": {"speculative_decoding": wrong}}) is None
    odd = told(101, {"metrics": {"speculative_decoding": VLLM | {"acceptance_histogram": wrong}}})
    assert odd is not None and odd.cycles == 43 and odd.accepted_at == ()


def test_places_of_several_answers_add_up_however_long_their_histograms() -> None:
    many = [
        told(54, {"metrics": {"speculative_decoding": VLLM}}),
        told(106, {"sglext": {"spec_tokens_details": SGLANG}}),
    ]
    answers = [
        Answer(id=str(place), set="s", sent_s=0.0, ended_s=1.0, speculation=each) for place, each in enumerate(many)
    ]
    found = of_requests(answers)
    assert found is not None and found.by_position == pytest.approx([n / 86 for n in (36, 21, 10, 3, 3)])
    silent = Answer(id="x", set="s", sent_s=0.0, ended_s=1.0, speculation=Speculation(emitted=2, cycles=1))
    without = of_requests([*answers, silent])
    assert without is not None and without.by_position == (), "places of some answers are not those of all"


@pytest.mark.parametrize("choices", ['"text"', "[1]", "{}1", '{"0": {}}'])
def test_a_stream_of_something_else_is_an_error_that_says_so(choices: str) -> None:
    found = answered(f'{{"choices": {choices}}}')
    assert found.error is not None and found.error.startswith("broken stream: ")
