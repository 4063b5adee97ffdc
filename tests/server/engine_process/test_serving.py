"""The engine's side without a process: a request that makes the engine raise is the only one that fails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.tiny import engine, tiny_drafter, tiny_target
from engine.worded import worded_target
from outpace import LLM, Grammar, SamplingParams
from outpace.engine.grammars.trials import untried
from outpace.errors import EngineError, RequestError
from outpace.server.engine_process.serving import Serving
from outpace.server.wire import (
    Abort,
    Accepted,
    AskState,
    Broken,
    FromEngine,
    Piece,
    Ready,
    Refused,
    State,
    Submit,
    Untried,
    WireError,
)

PROMPTS = {i: [(7 * i + j) % 61 for j in range(5 + i)] for i in range(4)}
POISON = 55
"""A prompt that begins with this token makes the device raise."""


class Side:
    """The other side: what it was sent, by request."""

    def __init__(self, llm: LLM) -> None:
        self.messages: list[FromEngine] = []
        self.serving = Serving(llm, self.messages.append)

    def submit(self, request_id: int, prompt_ids: list[int], **params: Any) -> None:
        settings = SamplingParams(**{"max_tokens": 12, "temperature": 0.9, "seed": request_id} | params)
        self.serving.handle([Submit(id=request_id, prompt_ids=prompt_ids, params=settings)])

    def run(self, most: int = 2000) -> None:
        for _ in range(most):
            if not self.serving.busy:
                return
            self.serving.step()
        raise AssertionError("the engine does not come to an end")

    def tokens(self, request_id: int) -> list[int]:
        return [t for m in self.messages if isinstance(m, Piece) and m.id == request_id for t in m.token_ids]

    def ends(self) -> dict[int, str]:
        return {m.id: m.finish_reason for m in self.messages if isinstance(m, Piece) and m.finish_reason}

    def broken(self) -> list[int]:
        return [m.id for m in self.messages if isinstance(m, Broken)]


def tiny() -> LLM:
    target = tiny_target()
    return engine(target, tiny_drafter(target))


@pytest.fixture(scope="module")
def expected() -> dict[int, list[int]]:
    """Answers without any trouble."""
    llm, found = tiny(), {}
    for i, prompt in PROMPTS.items():
        (result,) = llm.generate([prompt], SamplingParams(max_tokens=12, temperature=0.9, seed=i))
        found[i] = list(result.token_ids)
    return found


def break_when(llm: LLM, bad: Callable[[], bool]) -> None:
    """Steps of this engine raise while `bad()`."""
    enqueue = llm.engine.runner.enqueue

    def raising(plan: Any) -> Any:
        if bad():
            raise RuntimeError("the device said no")
        return enqueue(plan)

    llm.engine.runner.enqueue = raising  # type: ignore[method-assign]


def poisoned(llm: LLM) -> Callable[[], bool]:
    """Some request that is on the device begins with the poison."""
    scheduler = llm.engine.scheduler
    return lambda: any(s.tokens[0] == POISON for s in scheduler._admitted.values())


def test_answers_and_what_they_came_to(expected: dict[int, list[int]]) -> None:
    side = Side(tiny())
    for i, prompt in PROMPTS.items():
        side.submit(i, prompt)
    side.run()
    assert {i: side.tokens(i) for i in PROMPTS} == expected
    assert side.ends() == dict.fromkeys(PROMPTS, "length")
    last = [m for m in side.messages if isinstance(m, Piece)][-1]
    tally = last.tally
    assert tally.emitted == 11 and all(a <= d for a, d in zip(tally.accepted_at, tally.drafted_at, strict=True))


def test_a_request_that_cannot_be_served_is_refused_alone(expected: dict[int, list[int]]) -> None:
    side = Side(tiny())
    side.submit(0, PROMPTS[0])
    side.submit(1, [999])
    side.run()
    assert next(m for m in side.messages if isinstance(m, Refused)).id == 1
    assert side.tokens(0) == expected[0]


@pytest.mark.parametrize("place", range(4))
def test_only_the_culprit_fails(place: int, expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    order = sorted(PROMPTS)
    order.insert(place, 99)
    for i in order:
        side.submit(i, [POISON, 1, 2] if i == 99 else PROMPTS[i])
    side.run()
    assert side.broken() == [99]
    assert {i: side.tokens(i) for i in PROMPTS} == expected
    assert not llm.engine.scheduler.busy


def test_a_culprit_alone_leaves_nothing_behind() -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    side.submit(99, [POISON, 1, 2])
    side.run()
    assert side.broken() == [99]
    assert llm.engine.pages.num_free == llm.engine.pages.num_usable


def test_two_culprits_are_found_one_after_the_other(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    for i in (0, 98, 1, 99, 2):
        side.submit(i, [POISON, i % 7] if i > 9 else PROMPTS[i])
    side.run()
    assert sorted(side.broken()) == [98, 99]
    assert {i: side.tokens(i) for i in (0, 1, 2)} == {i: expected[i] for i in (0, 1, 2)}


def test_one_that_came_later_breaks_answers_that_are_half_told(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    for i in (0, 1):
        side.submit(i, PROMPTS[i])
    while not (side.tokens(0) and side.tokens(1)):
        side.serving.step()
    side.submit(99, [POISON])
    side.run()
    assert side.broken() == [99]
    assert {i: side.tokens(i) for i in (0, 1)} == {i: expected[i] for i in (0, 1)}


def test_a_passing_fault_harms_nobody(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    faults = iter([False, False, True] + [False] * 5 + [True])
    break_when(llm, lambda: next(faults, False))
    for i, prompt in PROMPTS.items():
        side.submit(i, prompt)
    side.run()
    assert side.broken() == []
    assert {i: side.tokens(i) for i in PROMPTS} == expected


def test_a_culprit_that_is_aborted_while_it_is_sought(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    for i in (99, 0, 1):
        side.submit(i, [POISON] if i == 99 else PROMPTS[i])
    side.serving.step()
    side.serving.step()
    side.serving.handle([Abort(id=99), Abort(id=1)])
    side.run()
    assert 0 not in side.broken()
    assert side.tokens(0) == expected[0]


def test_who_comes_during_a_fault_that_passes_is_served_without_another_message(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    faults = iter([False, False, True])
    break_when(llm, lambda: next(faults, False))
    side.submit(0, PROMPTS[0])
    for _ in range(3):
        side.serving.step()
    side.submit(1, PROMPTS[1])  # nothing more is sent
    side.run()
    assert {i: side.tokens(i) for i in (0, 1)} == {i: expected[i] for i in (0, 1)}


def test_who_stands_aside_comes_back_when_all_others_have_left(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    faults = iter([False, False, True, True])
    break_when(llm, lambda: next(faults, False))
    for i in (0, 1):
        side.submit(i, PROMPTS[i])
    for _ in range(4):
        side.serving.step()
    assert set(side.serving._suspicion._benched) == {1}
    side.serving.handle([Abort(id=0)])
    assert side.serving.busy
    side.run()
    assert side.broken() == [] and side.tokens(1) == expected[1]


@pytest.mark.parametrize("change", [{"seed": 77}, {"max_tokens": 1}])
def test_an_answer_that_is_another_when_it_is_done_over_is_not_joined_to_what_was_told(change: dict[str, int]) -> None:
    llm = tiny()
    side = Side(llm)
    faults: list[bool] = []
    break_when(llm, lambda: bool(faults) and faults.pop())
    for i in (0, 1, 2):
        side.submit(i, PROMPTS[i], max_tokens=60)
    for _ in range(4):
        side.serving.step()
    faults += [True, True, True]
    for _ in range(3):
        side.serving.step()
    aside = side.serving._suspicion._benched[2]
    aside.submit = msgspec.structs.replace(aside.submit, params=replace(aside.submit.params, **change))
    told = side.tokens(2)
    assert len(told) > 1
    side.run()
    guilty, broken = [m for m in side.messages if isinstance(m, Broken)]
    assert guilty.id == 1 and broken.id == 2
    assert "done over" in broken.message and "send the request again" in broken.message
    assert side.tokens(2) == told
    assert side.ends() == {0: "length"} and len(side.tokens(0)) == 60
    assert llm.engine.pages.num_free + llm.engine.pages.num_cached == llm.engine.pages.num_usable


def test_a_prompts_many_log_probabilities_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.server.engine_process.served.PROMPT_PART", 8)
    side = Side(tiny())
    prompt = [i % 61 for i in range(21)]
    side.submit(0, prompt, prompt_logprobs=2, max_tokens=3)
    side.submit(1, prompt[:8], prompt_logprobs=2, max_tokens=3)
    side.run()
    pieces = [m for m in side.messages if isinstance(m, Piece) and m.id == 0]
    assert [len(p.prompt_logprobs or ()) for p in pieces[:4]] == [8, 8, 5, 0]
    assert not any(p.token_ids or p.text for p in pieces[:2]) and pieces[2].token_ids
    listed = [found for p in pieces for found in p.prompt_logprobs or ()]
    (whole,) = tiny().generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=2))
    assert tuple(listed) == whole.prompt_logprobs


def test_a_broken_engine_says_so() -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, lambda: True)
    for i, prompt in PROMPTS.items():
        side.submit(i, prompt)
    with pytest.raises(EngineError, match="the engine is broken: RuntimeError: the device said no"):
        side.run()


def test_an_abort_frees_the_pages_at_once() -> None:
    llm = tiny()
    side = Side(llm)
    side.submit(1, PROMPTS[1], max_tokens=60)
    while not side.tokens(1):
        side.serving.step()
    side.serving.handle([Abort(id=1), AskState(ask=5)])
    state = side.messages[-1]
    assert isinstance(state, State) and state.ask == 5
    assert state.pages["free"] + state.pages["cached"] == state.pages["total"]
    assert not side.serving.busy


def test_messages_of_another_kind_are_errors() -> None:
    side = Side(tiny())
    with pytest.raises(WireError, match="Ready"):
        side.serving.handle([Ready(settings={})])  # type: ignore[list-item]


def test_accepted_comes_before_the_first_piece() -> None:
    side = Side(tiny())
    side.submit(1, PROMPTS[1])
    side.run()
    assert isinstance(side.messages[0], Accepted)


def test_an_answer_that_its_grammar_leaves_no_token_for_is_the_only_one_that_fails() -> None:
    target = worded_target()
    side = Side(engine(target, tiny_drafter(target)))
    side.submit(0, [1, 2], grammar=Grammar.regex("ab☂"))
    side.submit(1, [3, 4])
    side.submit(2, [5, 6], grammar=Grammar.regex("ab{3}"))
    side.submit(3, [5, 6], grammar=Grammar.regex("("))
    side.run()
    assert side.broken() == []
    assert sorted(m.id for m in side.messages if isinstance(m, Refused)) == [0, 3]
    assert len(side.tokens(1)) == 12
    assert "".join(m.text for m in side.messages if isinstance(m, Piece) and m.id == 2) == "abbb"


def test_who_waits_for_a_grammar_can_be_aborted_and_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    target = worded_target()
    llm = engine(target)
    side = Side(llm)
    never: Future[Any] = Future()
    monkeypatch.setattr(llm.engine.grammars, "begin", lambda grammar: never)
    for request_id in (0, 1):
        side.submit(request_id, [1, 2], grammar=Grammar.regex("a"))
    side.submit(2, [3, 4])
    for _ in range(20):
        side.serving.step()
    assert len(side.tokens(2)) == 12 and side.serving.busy
    side.serving.handle([Abort(id=0)])
    monkeypatch.setattr("outpace.server.engine_process.serving.COMPILE_WAIT_S", 0.0)
    side.run()
    (late,) = [m for m in side.messages if isinstance(m, Untried)]
    assert late.id == 1 and "send the request again" in late.message


def test_a_grammar_that_could_not_be_tried_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engine(worded_target())
    side, failed = Side(llm), Future[Any]()
    failed.set_exception(untried("no memory is left"))
    monkeypatch.setattr(llm.engine.grammars, "begin", lambda grammar: failed)
    side.submit(0, [1, 2], grammar=Grammar.regex("a"))
    side.submit(1, [3, 4])
    side.run()
    (told,) = [m for m in side.messages if isinstance(m, Untried | Refused | Broken)]
    assert told == Untried(id=0, message="grammar: it could not be tried: no memory is left; send the request again")
    assert len(side.tokens(1)) == 12


def test_a_grammar_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engine(worded_target())
    side = Side(llm)
    given_up: list[Grammar] = []
    never: Future[Any] = Future()
    monkeypatch.setattr(llm.engine.grammars, "begin", lambda grammar: never)
    monkeypatch.setattr(llm.engine.grammars, "give_up", given_up.append)
    for request_id in (0, 1):
        side.submit(request_id, [1, 2], grammar=Grammar.regex("a"))
    side.serving.handle([Abort(id=0)])
    assert not given_up, "another request waits for it"
    side.serving.handle([Abort(id=1)])
    assert given_up == [Grammar.regex("a")] and not side.serving.busy


def test_an_answer_that_cannot_be_begun_again_is_the_only_one_that_fails(expected: dict[int, list[int]]) -> None:
    llm = tiny()
    side = Side(llm)
    break_when(llm, poisoned(llm))
    for i in (99, 0, 1):
        side.submit(i, [POISON, 1, 2] if i == 99 else PROMPTS[i])
    while set(side.serving._suspicion._benched) != {0, 1}:
        side.serving.step()

    def refuse() -> None:
        raise RequestError("no memory")

    side.serving._suspicion._benched[1].begin = refuse  # type: ignore[method-assign]
    side.run()
    assert sorted(side.broken()) == [1, 99]
    assert side.tokens(0) == expected[0]


def test_the_first_piece_says_how_long_it_took() -> None:
    """And no other, so that nobody takes a later one's for the first's."""
    side = Side(tiny())
    side.submit(1, PROMPTS[1])
    side.run()
    first, *others = [message for message in side.messages if isinstance(message, Piece)]
    assert first.first_s is not None and first.first_s > 0.0
    assert others and all(piece.first_s is None for piece in others)
