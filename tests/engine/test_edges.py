"""Stops inside a run, limits, and requests that cannot be served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.test_lossless import answers, prompts, whole
from engine.tiny import VOCAB, OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import LLM, ConfigError, EngineConfig, RequestError, SamplingParams


def perfect(plain_params: SamplingParams, seed: int = 20, **options: object) -> tuple[LLM, list[int], tuple[int, ...]]:
    """An engine that accepts everything, a prompt, and the answer that plain decoding gives."""
    target = tiny_target(seed=seed)
    prompt = prompts(1, seed=seed)[0]
    result = engine(target).generate([prompt], plain_params)
    return engine(target, OracleDrafter(whole(result), 1.0), **options), prompt, result[0].token_ids


def test_stop_token_inside_a_run_cuts_exactly_there() -> None:
    llm, prompt, answer = perfect(SamplingParams(max_tokens=20))
    for end in range(1, 12):
        stop = answer[end]
        cut = answer.index(stop) + 1
        result = llm.generate([prompt], SamplingParams(max_tokens=20, stop_token_ids=(stop,)))[0]
        assert result.token_ids == answer[:cut]
        assert result.finish_reason == "stop"
        assert result.stats.emitted == cut - 1  # the first token came from prefill


def test_stop_wins_over_max_tokens_in_the_same_run() -> None:
    llm, prompt, answer = perfect(SamplingParams(max_tokens=20))
    cut = answer.index(answer[3]) + 1
    params = SamplingParams(max_tokens=cut, stop_token_ids=(answer[3],))
    result = llm.generate([prompt], params)[0]
    assert (result.token_ids, result.finish_reason) == (answer[:cut], "stop")


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_inside_a_run(max_tokens: int) -> None:
    llm, prompt, answer = perfect(SamplingParams(max_tokens=20))
    result = llm.generate([prompt], SamplingParams(max_tokens=max_tokens))[0]
    assert (result.token_ids, result.finish_reason) == (answer[:max_tokens], "length")


def test_end_of_text_ends_and_can_be_ignored() -> None:
    plain = engine(tiny_target(seed=21)).generate(prompts(1, seed=21), SamplingParams(max_tokens=20))
    end = plain[0].token_ids[6]
    target = tiny_target(seed=21, eos_token_ids=(end,))
    llm = engine(target, OracleDrafter(whole(plain), 1.0))
    cut = plain[0].token_ids.index(end) + 1
    stopped, ignored = llm.generate(
        prompts(1, seed=21) * 2, [SamplingParams(max_tokens=20), SamplingParams(max_tokens=20, ignore_eos=True)]
    )
    assert (stopped.token_ids, stopped.finish_reason) == (plain[0].token_ids[:cut], "stop")
    assert (ignored.token_ids, ignored.finish_reason) == (plain[0].token_ids, "length")


@pytest.mark.parametrize("k", [0, 4, 15])
@pytest.mark.parametrize("room", [1, 2, 3, 7])
def test_the_context_ends_an_answer(k: int, room: int) -> None:
    target = tiny_target(seed=22)
    prompt = (prompts(1, seed=22)[0] * 128)[: 128 - room]
    plain = engine(target).generate([prompt], SamplingParams(max_tokens=500))
    assert (len(plain[0].token_ids), plain[0].finish_reason) == (room, "length")
    result = engine(target, OracleDrafter(whole(plain), 1.0), k=k).generate([prompt], SamplingParams(max_tokens=500))
    assert answers(result) == answers(plain)


def test_a_drafter_with_a_shorter_position_limit_stops_drafting_and_serving_goes_on() -> None:
    target = tiny_target(seed=23)
    batch = prompts(3, seed=23, longest=20)
    params = SamplingParams(max_tokens=60)
    plain = engine(target).generate(batch, params)
    limited = engine(target, OracleDrafter(whole(plain), 1.0, max_positions=32)).generate(batch, params)
    free = engine(target, OracleDrafter(whole(plain), 1.0)).generate(batch, params)
    assert answers(limited) == answers(free) == answers(plain)
    for some, all_along in zip(limited, free, strict=True):
        assert some.stats.accept_length > 1.0 < all_along.stats.accept_length
        assert some.stats.cycles > all_along.stats.cycles, "where it stopped, they are plain steps"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], ("empty",)),
        ([1] * 128, ("128 tokens", "127")),
        ([1, VOCAB], (f"id {VOCAB}", f"{VOCAB - 1}")),
        ([-1], ("id -1",)),
    ],
)
def test_a_bad_prompt_is_refused_and_hurts_nobody(prompt: list[int], words: tuple[str, ...]) -> None:
    target = tiny_target(seed=24)
    good = prompts(2, seed=24)
    plain = engine(target).generate(good, SamplingParams(max_tokens=12))
    llm = engine(target, tiny_drafter(target))
    stream = llm.stream(good[0], SamplingParams(max_tokens=12))
    tokens = list(next(stream).token_ids)
    with pytest.raises(RequestError) as caught:
        llm.generate([good[1], prompt])
    assert all(word in str(caught.value) for word in words)
    for chunk in stream:
        tokens += chunk.token_ids
    assert tuple(tokens) == plain[0].token_ids
    assert not llm.engine.busy


def test_one_token_is_a_prompt() -> None:
    target = tiny_target(seed=25)
    plain = engine(target).generate([[3]], SamplingParams(max_tokens=9))
    assert answers(engine(target, tiny_drafter(target)).generate([[3]], SamplingParams(max_tokens=9))) == answers(plain)


def test_more_pages_than_there_are_is_refused_with_the_remedy() -> None:
    llm = engine(tiny_target(), num_pages=6)
    with pytest.raises(RequestError, match="need 10 KV pages; the engine has 5"):
        llm.generate([[1, 2]], SamplingParams(max_tokens=38))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SamplingParams(temperature=-0.1),
        lambda: SamplingParams(top_p=0.0),
        lambda: SamplingParams(min_p=1.5),
        lambda: SamplingParams(top_k=-1),
        lambda: SamplingParams(max_tokens=0),
        lambda: SamplingParams(seed=-1),
        lambda: SamplingParams(max_k=16),
        lambda: EngineConfig(k=16),
        lambda: EngineConfig(memory_fraction=0.0),
        lambda: EngineConfig(page_size=0),
        lambda: engine(tiny_target(), max_context=129),
        lambda: SamplingParams(top_k=2**63),
        lambda: SamplingParams(top_k=2.5),  # type: ignore[arg-type]
        lambda: SamplingParams(max_k=1.5),  # type: ignore[arg-type]
        lambda: SamplingParams(seed=1.5),  # type: ignore[arg-type]
        lambda: SamplingParams(max_tokens=float("nan")),  # type: ignore[arg-type]
        lambda: SamplingParams(temperature=float("nan")),
        lambda: SamplingParams(temperature="0"),  # type: ignore[arg-type]
        lambda: SamplingParams(max_tokens=True),
        lambda: SamplingParams(stop_token_ids=(1.5,)),  # type: ignore[arg-type]
        lambda: SamplingParams(stop_token_ids=5),  # type: ignore[arg-type]
        lambda: EngineConfig(k=2.5),  # type: ignore[arg-type]
        lambda: EngineConfig(page_size="16"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises((ConfigError, RequestError)) as caught:
        make()
    assert any(character.isdigit() for character in str(caught.value))


def test_params_must_match_prompts() -> None:
    with pytest.raises(RequestError, match="2 sampling params for 1 prompt;"):
        engine(tiny_target()).generate([[1]], [SamplingParams(), SamplingParams()])


def test_a_refused_draft_in_the_last_cycle_is_not_counted_as_accepted() -> None:
    target = tiny_target(seed=26)
    prompt = prompts(1, seed=26)
    plain = engine(target).generate(prompt, SamplingParams(max_tokens=12))
    stats = engine(target, OracleDrafter(whole(plain), 0.0)).generate(prompt, SamplingParams(max_tokens=12))[0].stats
    assert (stats.accept_length, stats.accepted, stats.drafted) == (1.0, 0, 11 * 4)
