"""Stop strings through `LLM`: the same answer plain and speculative, streamed and in a batch, cut wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.test_lossless import prompts, whole
from engine.test_pages import assert_all_back
from engine.tiny import VOCAB, OracleDrafter, engine, tiny_drafter, tiny_target
from models.byte_pieces import byte_tokenizer
from outpace import LLM, Chunk, RequestError, Result, SamplingParams
from outpace.models.registry import LoadedTarget

K = 4
PIECES = [
    *(bytes([97 + n]) for n in range(26)),
    *(bytes([65 + n, 46]) for n in range(26)),
    *(b" the", b"\n\n", b"\xe6\xbc", b"\xa2", b"\xf0\x9f", b"\x98", b"\x80", b"ab", b"\xc3"),
]
LONG = SamplingParams(max_tokens=40)


def talking(seed: int) -> LoadedTarget:
    assert len(PIECES) == VOCAB
    return replace(tiny_target(seed=seed), tokenizer=byte_tokenizer(PIECES))


def perfect(seed: int, num: int = 1) -> tuple[LLM, LLM, list[list[int]], list[Result]]:
    """A plain engine and one whose every draft stands, prompts, and their plain answers without a stop."""
    target, batch = talking(seed), prompts(num, seed=seed)
    plain = engine(target)
    results = plain.generate(batch, LONG)
    return plain, engine(target, OracleDrafter(whole(results), 1.0), k=K), batch, results


def substrings(text: str) -> Iterator[str]:
    for start in range(0, len(text), 3):
        for length in (1, 2, 3, 7):
            yield text[start : start + length]


def told(result: Result) -> tuple[object, ...]:
    return result.text, result.token_ids, result.finish_reason, result.stopped_by


def of_stream(chunks: list[Chunk]) -> Result:
    return Result.of((), chunks)


@pytest.mark.parametrize("seed", [60, 61])
def test_wherever_a_stop_lies_the_answer_is_plain_decodings(seed: int) -> None:
    plain, llm, (prompt,), (free,) = perfect(seed)
    for stop in dict.fromkeys(substrings(free.text)):
        params = replace(LONG, stop=(stop, "never this"))
        expected, result = plain.generate([prompt], params)[0], llm.generate([prompt], params)[0]
        assert told(result) == told(expected)
        assert (result.text, result.stopped_by) == (free.text[: free.text.index(stop)], stop)
        assert result.finish_reason == "stop"
        assert stop in plain.tokenizer.decode(result.token_ids)  # type: ignore[union-attr]
        assert told(of_stream(list(llm.stream(prompt, params)))) == told(expected)
        assert not llm.engine.busy
    assert_all_back(llm)


def test_only_tokens_that_reached_the_user_are_counted() -> None:
    """A stop string counts as `max_tokens` does that ends the answer at the same token."""
    _, llm, (prompt,), (free,) = perfect(62)
    seen = set()
    for stop in substrings(free.text):
        result = llm.generate([prompt], replace(LONG, stop=(stop,)))[0]
        limited = llm.generate([prompt], replace(LONG, max_tokens=len(result.token_ids)))[0]
        assert replace(result.stats, reused=0) == replace(limited.stats, reused=0)
        seen.add((len(result.token_ids) - 1) % (K + 1))
    assert seen == set(range(K + 1)), "stops at every place of a run"


def test_sampled_batches_with_a_random_drafter() -> None:
    target, batch = talking(63), prompts(8, seed=63)
    params = [
        SamplingParams(
            max_tokens=40, temperature=0.8, seed=n, stop=("a", ". ", "漢"), include_stop_str_in_output=n % 2 > 0
        )
        for n in range(8)
    ]
    expected = engine(target).generate(batch, params)
    llm = engine(target, tiny_drafter(target), max_rows=3)
    assert list(map(told, llm.generate(batch, params))) == list(map(told, expected))
    assert {result.finish_reason for result in expected} == {"stop", "length"}
    streams = [list(llm.stream(prompt, setting)) for prompt, setting in zip(batch, params, strict=True)]
    assert [told(of_stream(chunks)) for chunks in streams] == list(map(told, expected))
    assert_all_back(llm)


def test_a_match_ends_the_request_at_once() -> None:
    """The next one in the queue has its row then; had it gone on to `max_tokens`, it would have taken forty steps."""
    target, batch = talking(64), prompts(2, seed=64)
    llm = engine(target, max_rows=1)
    free = llm.generate(batch, LONG)
    steps = 0
    step = llm.engine.step

    def counted() -> None:
        nonlocal steps
        steps += 1
        step()

    llm.engine.step = counted  # type: ignore[method-assign]
    stopped = llm.generate(batch, [replace(LONG, stop=(result.text[:1],)) for result in free])
    assert [result.finish_reason for result in stopped] == ["stop", "stop"]
    assert steps < 16
    assert_all_back(llm)


def test_streams_that_take_turns_stop_each_at_its_own() -> None:
    """One has its text written by the other's steps, several cycles at once; a third is left in mid-run."""
    _, llm, batch, free = perfect(65, num=3)
    stops = [result.text[20:22] for result in free]
    params = [replace(LONG, stop=(stop,)) for stop in stops]
    expected = llm.generate(batch, params)
    streams = [llm.stream(prompt, setting) for prompt, setting in zip(batch, params, strict=True)]
    chunks: list[list[Chunk]] = [[next(stream)] for stream in streams]
    streams[2].close()
    chunks[0] += list(streams[0])
    chunks[1] += list(streams[1])
    for written, result in zip(chunks[:2], expected, strict=False):
        assert told(of_stream(written)) == told(result)
        assert written[-1].stats.emitted == len(result.token_ids) - 1
    assert_all_back(llm)


def test_logprobs_are_cut_where_the_answer_is() -> None:
    plain, llm, (prompt,), (free,) = perfect(66)
    params = replace(LONG, stop=(free.text[20:22],), logprobs=2, prompt_logprobs=0)
    expected, result = plain.generate([prompt], params)[0], llm.generate([prompt], params)[0]
    assert result.logprobs is not None
    assert expected.logprobs is not None
    assert result.prompt_logprobs is not None
    assert len(result.logprobs) == len(result.token_ids) == len(expected.logprobs) < len(free.token_ids)
    assert [[token for token, _ in entry.top] for entry in result.logprobs] == [
        [token for token, _ in entry.top] for entry in expected.logprobs
    ]
    assert len(result.prompt_logprobs) == len(prompt)
    chunks = list(llm.stream(prompt, params))
    assert all(chunk.logprobs is not None and len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    assert chunks[0].prompt_logprobs is not None
    assert llm.generate([prompt], LONG)[0].logprobs is None


def test_stop_strings_without_a_tokenizer_are_refused_before_anything_is_started() -> None:
    llm = engine(tiny_target())
    params = [SamplingParams(), SamplingParams(stop=("x",))]
    with pytest.raises(RequestError, match="need a tokenizer"):
        llm.generate([[1], [2]], params)
    with pytest.raises(RequestError, match="need a tokenizer"):
        llm.stream([1], params[1])
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("###", "must be a list"),
        (("",), "must be a text of 1 … 1024 characters"),
        (("x" * 1025,), "must be a text of 1 … 1024 characters"),
        ((5,), "must be a text of 1 … 1024 characters"),
        (("x",) * 17, "holds 17 texts; there may be 16"),
    ],
)
def test_stop_strings_out_of_range_are_refused(stop: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(stop=stop)  # type: ignore[arg-type]
