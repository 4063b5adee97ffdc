"""Penalties, biases and bans are exact at every position: speculative equals plain, plain equals a slow reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.reference import Served, decode, serve
from engine.test_lookahead import ahead
from engine.test_lossless import answers, prompts, sampled, whole
from engine.test_pages import assert_all_back
from engine.tiny import VOCAB, OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import LLM, RequestError, SamplingParams
from outpace.engine.runner import Runner
from outpace.engine.ticket import Ticket
from outpace.types import Plan

EOS = 17
FIELDS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.9},
    "repetition below 1": {"repetition_penalty": 0.6},
    "frequency": {"frequency_penalty": 1.3},
    "frequency below 0": {"frequency_penalty": -1.1},
    "presence": {"presence_penalty": 2.0},
    "presence below 0": {"presence_penalty": -1.5},
    "bias": {"logit_bias": {3: 4.0, EOS: -100.0, 40: 2.5, 59: 100.0}},
    "min_tokens": {"min_tokens": 14, "stop_token_ids": tuple(range(0, VOCAB, 3))},
    "bad_words": {"bad_words": [[token] for token in range(0, VOCAB, 4)]},
    "all": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": ((5, 3.0), (6, -2.0)),
        "min_tokens": 9,
        "stop_token_ids": (1, 2, 3, 4, 5, 6),
        "bad_words": ((7,), (8, 9), (10, 11, 12)),
    },
}
KINDS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.9}, {"temperature": 1.2, "top_k": 20, "top_p": 0.9})


def asking(num: int, seed: int) -> list[SamplingParams]:
    """Requests with fields taken by chance, some with none, greedy and sampled."""
    source = random.Random(seed)
    found = []
    for index in range(num):
        settings: dict[str, Any] = {"max_tokens": source.randint(10, 30), "seed": index, **source.choice(KINDS)}
        for name in source.sample(sorted(FIELDS), source.choice((0, 1, 1, 2, 3))):
            settings |= FIELDS[name]
        settings["min_tokens"] = min(settings.get("min_tokens", 0), settings["max_tokens"])
        found.append(SamplingParams(**settings))
    return found


def with_words(target: Any, batch: list[list[int]], settings: dict[str, Any]) -> list[SamplingParams]:
    """Parameters of one prompt each; its bad words are runs of 2, 3 and 16 tokens that it would have written."""
    found = []
    for index, free in enumerate(serve(engine(target), batch, [SamplingParams(max_tokens=24)] * len(batch))):
        text = [*batch[index], *free.token_ids]
        middle = len(batch[index]) + 2
        words = [text[middle : middle + 2], text[middle + 3 : middle + 6], text[middle - 3 : middle + 13], [EOS, 3]]
        found.append(SamplingParams(max_tokens=24, bad_words=words, seed=index, **settings))
    return found


def tokens(served: list[Served]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in served]


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "sampled", "truncated"])
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_does_what_it_does_elsewhere(name: str, kind: dict[str, Any]) -> None:
    target = tiny_target(seed=100, eos_token_ids=(EOS,))
    batch = [prompt for prompt in prompts(8, seed=100) if len(prompt) > 3][:4]
    params = [SamplingParams(max_tokens=22, seed=i, **kind, **FIELDS[name]) for i in range(len(batch))]
    expected = [decode(target, prompt, p) for prompt, p in zip(batch, params, strict=True)]
    plain = serve(engine(target), batch, params)
    assert tokens(plain) == expected
    free = serve(engine(target), batch, [SamplingParams(max_tokens=22, seed=i, **kind) for i in range(len(batch))])
    assert tokens(free) != expected, "the field changed nothing, so nothing was tested"
    known = [[*prompt, *answer] for prompt, answer in zip(batch, expected, strict=True)]
    for drafter in (tiny_drafter(target), OracleDrafter(known, 0.6), OracleDrafter(known, 1.0)):
        assert tokens(serve(engine(target, drafter), batch, params)) == expected


@pytest.mark.parametrize("kind", KINDS, ids=["greedy", "sampled", "truncated"])
def test_bad_words_of_several_tokens_are_banned_where_their_beginnings_stand(kind: dict[str, Any]) -> None:
    target = tiny_target(seed=101)
    batch = [prompt for prompt in prompts(8, seed=101) if len(prompt) > 15][:4]
    params = with_words(target, batch, kind)
    expected = [decode(target, prompt, p) for prompt, p in zip(batch, params, strict=True)]
    assert tokens(serve(engine(target), batch, params)) == expected
    known = [[*prompt, *answer] for prompt, answer in zip(batch, expected, strict=True)]
    for k in (1, 4, 15):
        assert tokens(serve(engine(target, OracleDrafter(known, 0.8), k=k), batch, params)) == expected
    for prompt, answer, p in zip(batch, expected, params, strict=True):
        text = [*prompt[-15:], *answer]
        for word in map(list, p.bad_words):
            ends = [end for end in range(16, len(text) + 1) if text[end - len(word) : end] == word]
            assert not ends


@pytest.mark.parametrize("k", [1, 4, 15])
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_mixtures_equal_plain(k: int, accuracy: float) -> None:
    target = tiny_target(seed=102, eos_token_ids=(EOS,))
    batch, params = prompts(12, seed=102 + k), asking(12, seed=k)
    plain = engine(target).generate(batch, params)
    for prompt, p, result in list(zip(batch, params, plain, strict=True))[:: max(k, 3)]:
        if len(prompt) > 3:  # transformers skips a bad word that is longer than what there is
            assert result.token_ids == decode(target, prompt, p)
    results = engine(target, OracleDrafter(whole(plain), accuracy), k=k).generate(batch, params)
    assert answers(results) == answers(plain)
    assert [r.finish_reason for r in results] == [r.finish_reason for r in plain]
    mean = sum(r.stats.accept_length for r in results) / len(results)
    assert mean < 1.2 if accuracy == 0.0 else mean > 1.2


@pytest.mark.parametrize(
    ("num_ahead", "wandering", "options"),
    [
        (1, False, {}),
        (2, True, {}),
        (1, True, {"num_pages": 40}),
        (1, False, {"num_pages": 36}),
        (2, False, {"prefill_chunk": 3, "max_rows": 3}),
        (1, True, {"prefill_chunk": 3, "max_rows": 3}),
    ],
)
def test_planning_ahead_padding_and_preemption_change_nothing(
    num_ahead: int, wandering: bool, options: dict[str, int]
) -> None:
    target = tiny_target(seed=103, eos_token_ids=(EOS,))
    batch, params = prompts(14, seed=103), asking(14, seed=103)
    plain = engine(target).generate(batch, params)
    for drafter in (tiny_drafter(target), OracleDrafter(whole(plain), 0.7)):
        llm = ahead(engine(target, drafter, **options), num_ahead, wandering=wandering)
        for _ in range(2):  # the second time over reused prefixes
            assert answers(llm.generate(batch, params)) == answers(plain)
        if "num_pages" in options:
            assert llm.engine.scheduler.num_preempted > 0
        assert_all_back(llm)


@pytest.mark.parametrize("num_ahead", [0, 1])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failed_step_changes_nothing(moment: str, num_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=104, eos_token_ids=(EOS,))
    batch, params = prompts(8, seed=104), asking(8, seed=104)
    plain = engine(target).generate(batch, params)
    llm = ahead(engine(target, OracleDrafter(whole(plain), 0.7), max_rows=4), num_ahead)
    enqueue, calls = llm.engine.runner.enqueue, 0

    def failing(plan: Plan) -> Ticket:
        nonlocal calls
        calls += 1
        if calls % 7 == 0 and moment == "before":
            raise KeyboardInterrupt
        ticket = enqueue(plan)
        if calls % 7 == 0:
            raise KeyboardInterrupt
        return ticket

    monkeypatch.setattr(llm.engine.runner, "enqueue", failing)
    assert tokens(serve(llm, batch, params)) == answers(plain)
    assert calls > 14
    assert_all_back(llm)


def test_rows_without_features_answer_as_if_alone() -> None:
    target = tiny_target(seed=105)
    batch = prompts(12, seed=105)
    params = [*sampled(6), *[SamplingParams(max_tokens=24, seed=i, **f) for i, f in enumerate([*FIELDS.values()][:6])]]
    alone = engine(target).generate(batch[:6], params[:6])
    together = engine(target, OracleDrafter(whole(alone), 0.7)).generate(batch, params)
    assert answers(together[:6]) == answers(alone)
    assert [r.stats.accept_length for r in together[:6]] == [
        r.stats.accept_length for r in engine(target, OracleDrafter(whole(alone), 0.7)).generate(batch[:6], params[:6])
    ]


def test_a_row_forgets_whom_it_belonged_to() -> None:
    target = tiny_target(seed=106)
    batch = prompts(6, seed=106)
    params = [
        SamplingParams(max_tokens=12, **f)
        for f in (FIELDS["all"], {}, FIELDS["bias"], FIELDS["repetition"], {}, FIELDS["all"])
    ]
    fresh = [engine(target).generate([prompt], p)[0] for prompt, p in zip(batch, params, strict=True)]
    llm = engine(target, tiny_drafter(target), max_rows=1)
    assert answers(llm.generate(batch, params)) == answers(fresh)


def test_nothing_is_made_for_engines_that_nobody_asks() -> None:
    target = tiny_target(seed=107)
    llm = engine(target, tiny_drafter(target))
    llm.generate(prompts(6, seed=107), sampled(6))
    assert llm.engine.runner.state.extras is None
    neutral = SamplingParams(max_tokens=4, stop_token_ids=(5,), bad_words=[], logit_bias={}, repetition_penalty=1)
    llm.generate(prompts(1, seed=107), neutral)
    assert llm.engine.runner.state.extras is None
    llm.generate(prompts(1, seed=107), SamplingParams(max_tokens=4, presence_penalty=1.0))
    assert llm.engine.runner.state.extras is not None


def test_frames_of_batches_without_features_are_todays() -> None:
    target = tiny_target(seed=108)
    llm = ahead(engine(target, tiny_drafter(target), prefix_reuse=False), 1)
    llm.generate(prompts(4, seed=108), sampled(4))
    frames = llm.engine.runner.frames
    assert frames is not None
    before = set(frames._frames)
    llm.generate(prompts(4, seed=108), [SamplingParams(max_tokens=6, logprobs=n) for n in (0, 3, 5, 6)])
    llm.generate(prompts(4, seed=108), SamplingParams(max_tokens=6, presence_penalty=1.0))
    added = set(frames._frames) - before
    assert not any(shape.needs.processed or shape.needs.num_logprobs is not None for shape in before)
    assert {shape.needs.num_logprobs for shape in added} <= {None, 0, 5, 20}
    llm.generate(prompts(4, seed=108), sampled(4))
    assert set(frames._frames) == before | added


def test_the_inert_row_stays_neutral() -> None:
    target = tiny_target(seed=109)
    llm = ahead(engine(target, tiny_drafter(target)), 1)
    llm.generate(prompts(5, seed=109), asking(5, seed=3))
    extras, inert = llm.engine.runner.state.extras, llm.engine.runner.state.inert
    assert extras is not None
    assert not extras.counts_RV[inert].any() and not extras.in_prompt_RV[inert].any()
    assert (extras.recent_RT[inert] == -1).all() and (extras.words_RWT[inert] == -1).all()
    assert float(extras.repetition_R[inert]) == 1.0


@pytest.mark.parametrize("k", [0, 4])
def test_stops_come_first_where_min_tokens_lets_them(k: int) -> None:
    """The ban ends inside a run of accepted tokens."""
    target = tiny_target(seed=110)
    prompt = prompts(1, seed=110)[0]
    for least in range(1, 12):
        params = SamplingParams(max_tokens=20, min_tokens=least, stop_token_ids=tuple(range(0, VOCAB, 2)))
        expected = decode(target, prompt, params)
        assert len(expected) > least or expected[-1] % 2
        drafter = OracleDrafter([[*prompt, *expected]], 1.0) if k else None
        assert serve(engine(target, drafter, k=k), [prompt], [params])[0].token_ids == expected


def test_ignored_ends_are_not_banned() -> None:
    target = tiny_target(seed=111)
    prompt = prompts(1, seed=111)[0]
    free = engine(target).generate([prompt], SamplingParams(max_tokens=12))[0].token_ids
    ending = tiny_target(seed=111, eos_token_ids=(free[4],))
    ignoring = SamplingParams(max_tokens=12, min_tokens=12, ignore_eos=True)
    assert engine(ending).generate([prompt], ignoring)[0].token_ids == free
    minding = SamplingParams(max_tokens=12, min_tokens=12)
    assert free[4] not in engine(ending).generate([prompt], minding)[0].token_ids


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, ("logit_bias", str(VOCAB), str(VOCAB - 1))),
        ({"logit_bias": {-1: 1.0}}, ("logit_bias", "-1")),
        ({"bad_words": [[1, VOCAB]]}, ("bad_words", str(VOCAB))),
        ({"bad_words": [[2, -3]]}, ("bad_words", "-3")),
        ({"bad_words": [[i] for i in range(VOCAB)]}, ("bad_words", f"{VOCAB} tokens")),
        ({"min_tokens": 1, "stop_token_ids": range(VOCAB)}, ("min_tokens", f"{VOCAB} tokens")),
    ],
)
def test_what_the_vocabulary_cannot_do_is_refused_and_hurts_nobody(
    settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    target = tiny_target(seed=112)
    batch, params = prompts(2, seed=112), asking(2, seed=112)
    expected = answers(engine(target).generate(batch, params))
    llm = engine(target, tiny_drafter(target))
    ids = [llm.engine.add(prompt, p) for prompt, p in zip(batch, params, strict=True)]
    got: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    with pytest.raises(RequestError) as caught:
        llm.engine.add([1, 2], SamplingParams(**settings))
    assert all(word in str(caught.value) for word in words)
    while llm.engine.busy:
        llm.engine.step()
        for update in llm.engine.poll_all():
            got[update.request_id] += update.token_ids
    assert [got[i] for i in ids] == expected


def test_no_memory_for_penalties_refuses_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=113)
    llm: LLM = engine(target, tiny_drafter(target))

    def full(self: object, vocab_size: int) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("outpace.speculation.state.State.provide", full)
    with pytest.raises(RequestError, match="16 rows"):
        llm.generate([[1, 2]], SamplingParams(presence_penalty=1.0))
    assert isinstance(llm.engine.runner, Runner)
    assert llm.generate([[1, 2]], SamplingParams(max_tokens=3))[0].token_ids
    assert_all_back(llm)
