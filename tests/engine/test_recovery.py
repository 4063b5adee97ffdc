"""When something goes wrong, it goes wrong for one request at most, and the engine goes on."""

from __future__ import annotations

import contextlib
import random
import sys
from types import FrameType

import pytest
import torch

from engine.test_lossless import answers, prompts
from engine.test_pages import assert_all_back
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine.runner import Ticket
from outpace.types import Plan


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_forward_that_fails_costs_nobody_a_token(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=27)
    drafter = tiny_drafter(target)
    batch = prompts(6, seed=27)
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=3)
    expected = answers(engine(target, drafter).generate(batch, params))
    llm = engine(target, drafter, max_rows=4)
    enqueue = llm.engine.runner.enqueue
    calls = 0

    def failing(plan: Plan) -> Ticket:
        nonlocal calls
        calls += 1
        fails = calls % 11 == 0
        if fails and moment == "before":
            raise KeyboardInterrupt
        ticket = enqueue(plan)
        if fails:
            raise KeyboardInterrupt
        return ticket

    monkeypatch.setattr(llm.engine.runner, "enqueue", failing)
    ids = [llm.engine.add(prompt, params) for prompt in batch]
    got: dict[int, list[int]] = {i: [] for i in ids}
    while llm.engine.busy:
        with contextlib.suppress(KeyboardInterrupt):
            llm.engine.step()
        for update in llm.engine.poll_all():
            got[update.request_id] += update.token_ids
    assert [tuple(got[i]) for i in ids] == expected
    assert_all_back(llm)


def test_numbers_that_are_not_finite_stay_with_their_request() -> None:
    target = tiny_target(seed=28)
    bad = 7
    with torch.no_grad():
        target.model.embed.weight[bad] = torch.inf
    good = [t for t in range(20) if t != bad]
    params = SamplingParams(max_tokens=8)
    expected = answers(engine(target).generate([good], params))
    llm = engine(target, max_rows=1, num_pages=17)
    for _ in range(3):
        llm.generate([[bad] * 30], params)
        assert answers(llm.generate([good], params)) == expected


def test_a_temperature_next_to_nothing_is_greedy() -> None:
    target = tiny_target(seed=29)
    batch = prompts(4, seed=29)
    greedy = answers(engine(target).generate(batch, SamplingParams(max_tokens=8)))
    assert answers(engine(target).generate(batch, SamplingParams(max_tokens=8, temperature=1e-39, seed=1))) == greedy


def test_one_that_needs_all_pages_gets_them() -> None:
    """Its own head lies in the tree under pages that it holds: it must start over, not fail."""
    head = [1, 2, 3, 4, 5, 6, 7, 8]
    short, long = SamplingParams(max_tokens=1), SamplingParams(max_tokens=28)
    expected = engine(tiny_target(), num_pages=11).generate([[*head, 9, 9, 9, 9]], long)[0].token_ids
    llm = engine(tiny_target(), num_pages=11, prefill_chunk=100)
    assert llm.generate([head, [*head, 9, 9, 9, 9]], [short, long])[1].token_ids == expected
    assert_all_back(llm)


class Interrupter:
    """Interrupts at one of the lines that the engine runs, chosen by chance."""

    def __init__(self, seed: int) -> None:
        self.left = random.Random(seed).randrange(1, 4000)

    def __call__(self, frame: FrameType, event: str, arg: object) -> Interrupter | None:
        if "/outpace/engine/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("seed", range(40))
def test_an_interrupt_at_any_line_costs_nobody_else_a_token(seed: int) -> None:
    target = tiny_target(seed=31)
    llm = engine(target, tiny_drafter(target), max_rows=3, num_pages=60)
    mine, other = prompts(4, seed=32), prompts(1, seed=33)[0]
    params = SamplingParams(max_tokens=30)
    expected = engine(target).generate([other, *mine], params)
    stream = llm.stream(other, params)
    got = list(next(stream).token_ids)
    tracing = sys.gettrace()
    sys.settrace(Interrupter(seed))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            llm.generate(mine, params)
    finally:
        sys.settrace(tracing)
    for chunk in stream:
        got += chunk.token_ids
    assert tuple(got) == expected[0].token_ids
    assert answers(llm.generate(mine, params)) == answers(expected[1:])
    assert_all_back(llm)
