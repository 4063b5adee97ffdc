"""Planning ahead of what is known, padding rows, and a k that changes from cycle to cycle: nobody's answer changes."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence as Listed
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.test_drafter_cache import draft_from_scratch, watch
from engine.test_lossless import answers, prompts, sampled
from engine.test_pages import assert_all_back
from engine.tiny import OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine import memory
from outpace.engine.frames import Frames
from outpace.engine.sequence import Sequence
from outpace.speculation.control import Decision, Drafting

BUCKETS = (1, 3, 6, 16)


class Wandering:
    """Any k at any time, plain steps often; half of the prompts are not made ready for drafts."""

    def __init__(self, k: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.ks = (0, 0, 0, 1, k)

    def choose(self, batch: Listed[Drafting]) -> Decision:
        return Decision(self.random.choice(self.ks), "chance")

    def fills_drafter(self) -> bool:
        return self.random.random() < 0.5


def frame(llm: LLM, buckets: tuple[int, ...] = BUCKETS) -> None:
    """Cycles run over the fixed buffers that graphs are captured from."""
    runner = llm.engine.runner
    runner.buckets = buckets
    runner.frames = Frames(llm.engine._pair, runner.state, llm.config.page_size)


def ahead(llm: LLM, num_ahead: int, *, wandering: bool = False) -> LLM:
    """The engine, with forwards in flight and rows padded, as on a GPU."""
    frame(llm)
    llm.engine.runner.num_ahead = num_ahead
    if wandering:
        llm.engine.scheduler.control = Wandering(llm.config.k)
    return llm


@pytest.mark.parametrize(
    ("num_ahead", "wandering", "options"),
    [
        (1, False, {}),
        (2, True, {}),
        (0, True, {"num_pages": 40}),
        (1, False, {"num_pages": 40}),
        (1, True, {"num_pages": 40}),
        (2, False, {"prefill_chunk": 3, "max_rows": 3}),
        (1, True, {"prefill_chunk": 3, "max_rows": 3}),
        (1, True, {"page_size": 1}),
    ],
)
def test_answers_are_plain_decodings(num_ahead: int, wandering: bool, options: dict[str, int]) -> None:
    target = tiny_target(seed=60)
    batch = prompts(10, seed=61)
    params = sampled(10)
    plain = engine(target).generate(batch, params)
    known = [result.prompt_ids + result.token_ids for result in plain]
    for drafter in (tiny_drafter(target), OracleDrafter(known, 0.7)):
        llm = ahead(engine(target, drafter, **options), num_ahead, wandering=wandering)
        for _ in range(2):  # the second time over reused prefixes
            assert answers(llm.generate(batch, params)) == answers(plain)
        assert_all_back(llm)


@pytest.mark.parametrize("num_ahead", [0, 1, 2])
def test_stops_and_limits_cut_where_they_do_without_anything_in_flight(num_ahead: int) -> None:
    target = tiny_target(seed=62, eos_token_ids=(3, 17))
    batch = prompts(12, seed=62)
    params = [SamplingParams(max_tokens=1 + i, stop_token_ids=(5 * i,)) for i in range(12)]
    plain = engine(target).generate(batch, params)
    known = [result.prompt_ids + result.token_ids for result in plain]
    found = ahead(engine(target, OracleDrafter(known, 1.0)), num_ahead).generate(batch, params)
    assert answers(found) == answers(plain)
    assert [r.finish_reason for r in found] == [r.finish_reason for r in plain]
    assert [r.stats.emitted for r in found] == [r.stats.emitted for r in plain]


@pytest.mark.parametrize("num_ahead", [1, 2])
def test_who_gives_its_pages_back_has_nothing_in_flight(num_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So whatever a forward chose for a row is its present owner's."""
    target = tiny_target(seed=60)
    llm = ahead(engine(target, tiny_drafter(target), num_pages=40), num_ahead, wandering=True)
    in_flight: list[int] = []
    preempt = llm.engine.scheduler._preempt

    def watched(sequence: Sequence) -> None:
        in_flight.append(len(llm.engine._in_flight))
        preempt(sequence)

    monkeypatch.setattr(llm.engine.scheduler, "_preempt", watched)
    batch = prompts(10, seed=61)
    reused: dict[int, int | None] = {}
    requests = [llm.engine.add(prompt, SamplingParams(max_tokens=40)) for prompt in batch]
    while llm.engine.busy:
        llm.engine.step()
        for sequence in llm.engine.scheduler.admitted:
            assert reused.setdefault(sequence.request.id, sequence.num_reused) == sequence.num_reused
    assert in_flight and not any(in_flight)
    assert reused == dict.fromkeys(requests, 0), "what one finds again after that is its own"


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 30)),
        st.tuples(st.just("step"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0)),
    ),
    max_size=20,
)
_TARGET = tiny_target(seed=63)
_DRAFTER = tiny_drafter(_TARGET)
_PROMPTS = [*prompts(2, seed=64), *([p * 2 for p in prompts(2, seed=64)])]
_LONGEST = SamplingParams(max_tokens=30, temperature=0.8, seed=5)
_ANSWERS = answers(engine(_TARGET).generate(_PROMPTS, _LONGEST))


@settings(max_examples=30)
@given(ACTIONS, st.integers(26, 60), st.integers(1, 4), st.integers(0, 2))
def test_whatever_happens_every_answer_is_right_and_every_page_comes_back(
    actions: list[tuple[str, int, int]], num_pages: int, max_rows: int, num_ahead: int
) -> None:
    llm = ahead(engine(_TARGET, _DRAFTER, num_pages=num_pages, max_rows=max_rows), num_ahead, wandering=True)
    wanted: dict[int, tuple[int, ...]] = {}
    got: dict[int, list[int]] = {}

    def step() -> None:
        llm.engine.step()
        for update in llm.engine.poll_all():
            got[update.request_id] += update.token_ids

    for action, number, max_tokens in actions:
        if action == "add":
            params = SamplingParams(max_tokens=max_tokens, temperature=0.8, seed=5)
            request = llm.engine.add(_PROMPTS[number], params)
            wanted[request], got[request] = _ANSWERS[number][:max_tokens], []
        elif action == "step":
            for _ in range(number):
                step()
        elif wanted:
            llm.engine.abort(aborted := list(wanted)[number % len(wanted)])
            wanted[aborted] = ()
            got[aborted] = []
    while llm.engine.busy:
        step()
    assert {i: tuple(tokens) for i, tokens in got.items() if wanted[i]} == {i: w for i, w in wanted.items() if w}
    assert_all_back(llm)


@pytest.mark.parametrize("num_ahead", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 3}, {"num_pages": 24}])
def test_after_plain_steps_drafts_are_those_from_scratch(
    options: dict[str, int], num_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(seed=65)
    drafter = tiny_drafter(target, seed=66)
    llm = ahead(engine(target, drafter, max_rows=4, **options), num_ahead, wandering=True)
    seen = watch(llm, monkeypatch)
    batch = prompts(8, seed=67, longest=14)
    first = llm.generate(batch, SamplingParams(max_tokens=30))
    again = [[*result.prompt_ids, *result.token_ids, 7] for result in first]
    llm.generate(again, SamplingParams(max_tokens=20))
    assert len(seen()) > 30
    for tokens, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, tokens, 4)[: len(drafts)], f"after {len(tokens)} tokens"


@pytest.mark.parametrize("fills", [True, False])
def test_a_drafter_that_cannot_catch_up_with_all_goes_on_from_what_it_is_shown(
    fills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drafts as one whose sequence began there would, and offers nobody the pages with the hole."""
    monkeypatch.setattr(memory, "HISTORY", 6)
    target = tiny_target(seed=68)
    drafter = tiny_drafter(target, seed=69)
    llm = engine(target, drafter, max_rows=1)
    ks = iter([*[0] * 20, *[4] * 100])
    late = {"choose": lambda self, batch: Decision(next(ks), "late"), "fills_drafter": lambda self: fills}
    llm.engine.scheduler.control = type("Late", (), late)()
    prompt = prompts(1, seed=70)[0]
    expected = engine(target).generate([prompt], SamplingParams(max_tokens=40))
    assert answers(llm.generate([prompt], SamplingParams(max_tokens=40))) == answers(expected)
    assert int(llm.engine.runner.state.first_R[0]) == len(prompt) + 20 - 6 + 1
    pages = llm.engine.pages
    whole = [*prompt, *expected[0].token_ids]
    assert pages.match(whole, needs_drafter=False)
    assert len(pages.match(whole, needs_drafter=True)) <= (len(prompt) // 4 if fills else 0)
    llm.generate([[7, 8, 9]], SamplingParams(max_tokens=2))
    assert int(llm.engine.runner.state.first_R[0]) == 1, "the next in that row sees its own beginning"


def test_padding_rows_leave_no_trace() -> None:
    target = tiny_target(seed=71)
    drafter = tiny_drafter(target)
    batch = prompts(5, seed=72)
    states = []
    for framed in (False, True):
        llm = engine(target, drafter)
        if framed:
            frame(llm, (7, 16))
        ids = [llm.engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in batch]
        for _ in range(12):
            llm.engine.step()
        assert ids
        states.append(llm.engine.runner.state)
    plain, padded = states
    inert = plain.inert
    for name in ("length_R", "last_token_R", "num_pending_R", "pending_tokens_RW", "page_table_RP", "first_R"):
        assert torch.equal(getattr(plain, name)[:inert], getattr(padded, name)[:inert]), name
    assert torch.allclose(plain.pending_hidden_RWH[:inert], padded.pending_hidden_RWH[:inert], atol=1e-5)
    assert int(padded.length_R[inert]) == 0
    assert not padded.page_table_RP[inert].any()


def test_no_number_of_the_hosts_is_written_at_places_that_the_device_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`state[rows] = 1` uploads the 1: on a GPU the host waits for that, and a graph cannot be captured."""
    written: list[str] = []
    write = torch.Tensor.__setitem__

    def watched(tensor: torch.Tensor, index: Any, value: Any) -> None:
        indices = index if isinstance(index, tuple) else (index,)
        caller = sys._getframe(1)
        if not isinstance(value, torch.Tensor) and any(isinstance(each, torch.Tensor) for each in indices):
            written.append(f"{caller.f_globals['__name__']}:{caller.f_lineno}")
        write(tensor, index, value)

    target = tiny_target(seed=73)
    llm = ahead(engine(target, tiny_drafter(target), prefill_chunk=256), 1, wandering=True)
    monkeypatch.setattr(torch.Tensor, "__setitem__", watched)
    llm.generate(prompts(4, seed=74), [SamplingParams(max_tokens=30), sampled(1)[0]] * 2)
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=9, repetition_penalty=1.2))
    ours = [place for place in written if not place.startswith("outpace.kernels.")]  # a GPU has its own
    assert llm.engine.runner.frames is not None and not ours, ours
