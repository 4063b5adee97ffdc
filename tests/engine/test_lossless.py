"""Speculation never changes an answer: token for token against plain decoding, in float32."""

from __future__ import annotations

import pytest
import torch

from engine.tiny import VOCAB, OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine.results import Result

GREEDY = SamplingParams(max_tokens=24)


def prompts(num: int, seed: int = 0, longest: int = 30) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (num,), generator=generator).tolist()
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def answers(results: list[Result]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


def whole(results: list[Result]) -> list[tuple[int, ...]]:
    return [result.prompt_ids + result.token_ids for result in results]


def sampled(num: int) -> list[SamplingParams]:
    """Every kind of truncation beside greedy rows."""
    kinds = (
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.1},
        {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {},
    )
    return [SamplingParams(max_tokens=24, seed=i, **kinds[i % len(kinds)]) for i in range(num)]  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 15])
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_greedy_equals_plain(k: int, accuracy: float) -> None:
    target = tiny_target()
    batch = prompts(5, seed=k)
    plain = engine(target).generate(batch, GREEDY)
    llm = engine(target, OracleDrafter(whole(plain), accuracy), k=k)
    results = llm.generate(batch, GREEDY)
    assert answers(results) == answers(plain)
    lengths = [result.stats.accept_length for result in results]
    if accuracy == 0.0:
        assert max(lengths) == 1.0
    if accuracy == 1.0:
        assert max(lengths) == 23 / -(-23 // (k + 1))  # others may share (position, token) with a row and miss
    if accuracy == 0.6:
        assert 1.0 < sum(lengths) / len(lengths) < 3.5


@pytest.mark.parametrize("num", [1, 2, 9, 16])
def test_a_random_drafter_changes_nothing(num: int) -> None:
    target = tiny_target(seed=num)
    batch = prompts(num, seed=num)
    params = sampled(num)
    plain = engine(target).generate(batch, params)
    for k in (1, 3, 6):
        assert answers(engine(target, tiny_drafter(target), k=k).generate(batch, params)) == answers(plain)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_sampling_equals_plain_at_the_same_seeds(k: int) -> None:
    target = tiny_target(seed=3)
    batch, params = prompts(12, seed=3), sampled(12)
    plain = engine(target).generate(batch, params)
    results = engine(target, OracleDrafter(whole(plain), 0.9), k=k).generate(batch, params)
    assert answers(results) == answers(plain)


def test_company_changes_nothing() -> None:
    target = tiny_target(seed=4)
    batch, params = prompts(8, seed=4), sampled(8)
    drafter = tiny_drafter(target)
    together = engine(target, drafter).generate(batch, params)
    alone = [engine(target, drafter).generate([p], s)[0] for p, s in zip(batch, params, strict=True)]
    assert answers(together) == answers(alone)


def test_preemption_changes_nothing() -> None:
    """Pages for about two requests, eight of them: they push each other out in turn."""
    target = tiny_target(seed=5)
    batch, params = prompts(8, seed=5), sampled(8)
    plain = engine(target).generate(batch, params)
    tight = engine(target, OracleDrafter(whole(plain), 0.7), num_pages=31)
    assert answers(tight.generate(batch, params)) == answers(plain)
    assert tight.engine.scheduler.num_preempted > 0


def test_prefix_hits_change_nothing_and_save_work() -> None:
    target = tiny_target(seed=6)
    head = prompts(1, seed=6)[0] * 30
    batch = [head[:20] + tail for tail in prompts(6, seed=7)]
    plain = engine(target, prefix_reuse=False).generate(batch, GREEDY)
    llm = engine(target, OracleDrafter(whole(plain), 0.7))
    first = llm.generate(batch, GREEDY)
    again = llm.generate(batch, GREEDY)
    assert answers(first) == answers(again) == answers(plain)
    assert all(result.stats.reused >= 20 for result in again)


def test_chunked_prefill_changes_nothing() -> None:
    target = tiny_target(seed=8)
    batch = prompts(4, seed=8, longest=60)
    plain = engine(target, prefill_chunk=1000).generate(batch, GREEDY)
    for chunk in (1, 5, 16):
        drafter = OracleDrafter(whole(plain), 0.8)
        assert answers(engine(target, drafter, prefill_chunk=chunk).generate(batch, GREEDY)) == answers(plain)


def test_per_request_policy_mixes_plain_and_speculative_rows() -> None:
    target = tiny_target(seed=9)
    batch = prompts(6, seed=9)
    plain = engine(target).generate(batch, GREEDY)
    params = [SamplingParams(max_tokens=24, max_k=m) for m in (0, 1, 2, None, 0, 15)]
    results = engine(target, OracleDrafter(whole(plain), 1.0)).generate(batch, params)
    assert answers(results) == answers(plain)
    assert [len(r.stats.acceptance_by_position) for r in results] == [0, 1, 2, 4, 0, 4]
    assert results[0].stats.accept_length == 1.0


def test_abort_frees_a_row_and_leaves_the_others_alone() -> None:
    target = tiny_target(seed=10)
    batch = prompts(3, seed=10)
    plain = engine(target).generate(batch, GREEDY)
    llm = engine(target, OracleDrafter(whole(plain), 0.7))
    streams = [llm.stream(prompt, GREEDY) for prompt in batch]
    pieces: list[list[int]] = [[], [], []]
    for _ in range(2):
        for index, stream in enumerate(streams):
            pieces[index] += next(stream).token_ids
    streams[1].close()
    for index in (0, 2):
        for chunk in streams[index]:
            pieces[index] += chunk.token_ids
        assert tuple(pieces[index]) == plain[index].token_ids
    assert not llm.engine.busy


def test_a_page_size_of_one_and_windows() -> None:
    target = tiny_target(seed=11, windows=(6, None, 6))
    batch = prompts(5, seed=11)
    plain = engine(target).generate(batch, GREEDY)
    drafter = OracleDrafter(whole(plain), 0.7)
    assert answers(engine(target, drafter, page_size=1, num_pages=1000).generate(batch, GREEDY)) == answers(plain)
