"""Log-probabilities are the target's own, whatever was drafted, and cut where the tokens are."""

from __future__ import annotations

import sys

import pytest
import torch

from engine.reference import Served, raw_logits, serve
from engine.test_lookahead import ahead
from engine.test_lossless import prompts
from engine.test_pages import assert_all_back
from engine.test_processing import EOS, asking
from engine.test_recovery import Interrupter
from engine.tiny import VOCAB, OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine.ticket import Ticket
from outpace.models.registry import LoadedTarget
from outpace.types import Plan, TokenLogprobs

CLOSE = 1e-4


def check(found: TokenLogprobs, logprobs_V: torch.Tensor, token: int, num: int) -> None:
    assert abs(found.logprob - float(logprobs_V[token])) < CLOSE
    best = logprobs_V.topk(min(num, VOCAB))
    assert [i for i, _ in found.top] == best.indices.tolist()
    assert [v for _, v in found.top] == pytest.approx(best.values.tolist(), abs=CLOSE)


def check_all(target: LoadedTarget, prompt: list[int], answer: Served, params: SamplingParams) -> None:
    logprobs = raw_logits(target, [*prompt, *answer.token_ids]).log_softmax(-1)
    if params.logprobs is None:
        assert answer.logprobs == ()
    else:
        assert len(answer.logprobs) == len(answer.token_ids)
        for place, (found, token) in enumerate(zip(answer.logprobs, answer.token_ids, strict=True)):
            check(found, logprobs[len(prompt) - 1 + place], token, params.logprobs)
    if params.prompt_logprobs is None:
        assert answer.prompt_logprobs is None
        return
    assert answer.prompt_logprobs is not None and len(answer.prompt_logprobs) == len(prompt)
    assert answer.prompt_logprobs[0] is None
    for place, (given, token) in enumerate(zip(answer.prompt_logprobs[1:], prompt[1:], strict=True)):
        assert given is not None
        check(given, logprobs[place], token, params.prompt_logprobs)


def mixed(num: int, seed: int) -> list[SamplingParams]:
    """Requests of every kind that want log-probabilities, of the prompt, of neither, or of both."""
    wants = ({"logprobs": 0}, {}, {"logprobs": 3, "prompt_logprobs": 2}, {"prompt_logprobs": 0}, {"logprobs": 20})
    kept = {name for name in SamplingParams.__dataclass_fields__ if name not in ("logprobs", "prompt_logprobs")}
    return [
        SamplingParams(**{name: getattr(p, name) for name in kept}, **wants[i % len(wants)])
        for i, p in enumerate(asking(num, seed))
    ]


@pytest.mark.parametrize("k", [1, 4, 15])
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_they_are_the_targets_with_and_without_drafts(k: int, accuracy: float) -> None:
    target = tiny_target(seed=120, eos_token_ids=(EOS,))
    batch, params = prompts(10, seed=120), mixed(10, seed=120)
    plain = serve(engine(target), batch, params)
    for prompt, answer, p in zip(batch, plain, params, strict=True):
        check_all(target, prompt, answer, p)
    known = [[*prompt, *answer.token_ids] for prompt, answer in zip(batch, plain, strict=True)]
    assert same(serve(engine(target, OracleDrafter(known, accuracy), k=k), batch, params), plain)


def same(found: list[Served], expected: list[Served]) -> bool:
    """Tokens and alternatives are equal, and numbers to the last bits of a float32."""
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.token_ids, mine.finish_reason) == (theirs.token_ids, theirs.finish_reason)
        for a, b in (
            (mine.logprobs, theirs.logprobs),
            ((mine.prompt_logprobs or ())[1:], (theirs.prompt_logprobs or ())[1:]),
        ):
            assert len(a) == len(b)
            for x, y in zip(a, b, strict=True):
                assert x is not None and y is not None
                numbers = [v for _, v in x.top]
                assert [x.logprob, *numbers] == pytest.approx([y.logprob, *(v for _, v in y.top)], abs=1e-5)
                theirs_by_id, last = dict(y.top), min(numbers, default=0.0)
                for token, value in x.top:  # of a tie, either may come first, or be the one that is still named
                    assert theirs_by_id.get(token, last) == pytest.approx(value, abs=1e-5)
    return True


@pytest.mark.parametrize(
    ("num_ahead", "wandering", "options"),
    [
        (1, False, {}),
        (2, True, {}),
        (1, True, {"num_pages": 40}),
        (2, True, {"prefill_chunk": 3, "max_rows": 3}),
        (1, False, {"prefill_chunk": 1, "num_pages": 60}),
    ],
)
def test_planning_ahead_padding_preemption_and_prefixes_change_nothing(
    num_ahead: int, wandering: bool, options: dict[str, int]
) -> None:
    target = tiny_target(seed=121, eos_token_ids=(EOS,))
    batch, params = prompts(12, seed=121), mixed(12, seed=121)
    plain = serve(engine(target), batch, params)
    llm = ahead(engine(target, tiny_drafter(target), **options), num_ahead, wandering=wandering)
    for _ in range(2):
        assert same(serve(llm, batch, params), plain)
    if options.get("num_pages") == 40:
        assert llm.engine.scheduler.num_preempted > 0
    assert_all_back(llm)


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_a_failed_step_loses_and_doubles_none(num_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=122)
    batch, params = prompts(8, seed=122), mixed(8, seed=122)
    plain = serve(engine(target), batch, params)
    llm = ahead(engine(target, tiny_drafter(target), max_rows=4, prefill_chunk=5), num_ahead)
    enqueue, calls = llm.engine.runner.enqueue, 0

    def failing(plan: Plan) -> Ticket:
        nonlocal calls
        calls += 1
        ticket = enqueue(plan)
        if calls % 11 == 0:
            raise KeyboardInterrupt
        return ticket

    monkeypatch.setattr(llm.engine.runner, "enqueue", failing)
    assert same(serve(llm, batch, params), plain)
    assert calls > 22


def test_a_known_prefix_hides_none_of_the_prompts() -> None:
    target = tiny_target(seed=123)
    prompt = list(range(30))
    llm = engine(target, tiny_drafter(target))
    plain, asked = SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, prompt_logprobs=1)
    llm.generate([prompt], plain)
    answer = serve(llm, [prompt], [asked])[0]
    check_all(target, prompt, answer, asked)
    assert llm.generate([prompt], plain)[0].stats.reused >= 24


def test_a_prompt_of_one_token_has_none() -> None:
    params = SamplingParams(max_tokens=2, prompt_logprobs=5)
    assert serve(engine(tiny_target()), [[3]], [params])[0].prompt_logprobs == (None,)


def test_a_stop_inside_a_run_cuts_them_where_it_cuts_tokens() -> None:
    target = tiny_target(seed=124)
    prompt = prompts(1, seed=124)[0]
    free = engine(target).generate([prompt], SamplingParams(max_tokens=20))[0]
    known = [[*prompt, *free.token_ids]]
    for end in range(1, 12):
        params = SamplingParams(max_tokens=20, stop_token_ids=(free.token_ids[end],), logprobs=2)
        answer = serve(ahead(engine(target, OracleDrafter(known, 1.0)), 1), [prompt], [params])[0]
        assert len(answer.logprobs) == len(answer.token_ids) == free.token_ids.index(free.token_ids[end]) + 1
        check_all(target, prompt, answer, params)


def test_they_are_of_the_logits_before_penalties() -> None:
    target = tiny_target(seed=125)
    prompt = prompts(1, seed=125)[0]
    params = SamplingParams(max_tokens=6, logit_bias={5: 100.0}, temperature=0.7, seed=1, logprobs=4)
    answer = serve(engine(target, tiny_drafter(target)), [prompt], [params])[0]
    assert set(answer.token_ids) == {5}
    assert all(found.logprob < -1e-3 for found in answer.logprobs)
    check_all(target, prompt, answer, params)


@pytest.mark.parametrize("seed", range(20))
def test_an_interrupt_at_any_line_leaves_them_beside_their_tokens(seed: int) -> None:
    target = tiny_target(seed=126)
    batch, params = prompts(6, seed=126), mixed(6, seed=126)
    plain = serve(engine(target), batch, params)
    llm = engine(target, tiny_drafter(target), max_rows=3, num_pages=60, prefill_chunk=7)
    step, interrupter, tracing = llm.engine.step, Interrupter(seed), sys.gettrace()

    def traced() -> None:
        sys.settrace(interrupter)
        try:
            step()
        finally:
            sys.settrace(tracing)

    llm.engine.step = traced  # type: ignore[method-assign]
    assert same(serve(llm, batch, params), plain)
    assert interrupter.left <= 0
