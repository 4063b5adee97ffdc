"""What is shown of an answer: against decoding everything at once and cutting it there."""

from __future__ import annotations

import codecs
import subprocess
import sys
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.byte_pieces import byte_tokenizer
from models.test_stop_strings import first_stop
from outpace import RequestError, SamplingParams
from outpace.engine.answer import Answer, Piece
from outpace.models.text.tokenizer import Tokenizer

LETTERS = "ab\né漢😀"
WORDS = (b"Hello", b" wor", b"ld", b". ", b"St", b"op", b"\xe6\xbc", b"\xa2", b"!")
HELLO, WOR, LD, DOT, ST, OP, HEAD, TAIL, BANG = range(9)


def answer(params: SamplingParams, tokenizer: Tokenizer | None = None) -> Answer:
    return Answer(tokenizer or byte_tokenizer(WORDS, special=["<end>"]), params)


@st.composite
def tokenisations(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """Pieces that spell a text, cut anywhere, inside characters too; and where runs of them end."""
    text = draw(st.text(LETTERS, min_size=1, max_size=25)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, len(text)), max_size=12)) | {len(text)})
    pieces = [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    return pieces, draw(st.lists(st.integers(1, 6), min_size=len(pieces), max_size=len(pieces)))


def certain(pieces: list[bytes], final: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(b"".join(pieces), final=final)


def expected(pieces: list[bytes], stops: list[str], params: SamplingParams) -> tuple[str, int, str, str | None]:
    """The shown text, the completion tokens, why it ended and by which stop, the slow way."""
    for num in range(1, len(pieces) + 1):
        text = certain(pieces[:num], final=num == len(pieces))
        found = first_stop(text, stops)
        if found is not None:
            end, stop = found
            return text[: end if params.include_stop_str_in_output else end - len(stop)], num, "stop", stop
    return certain(pieces, final=True), len(pieces), "length", None


@settings(max_examples=500, deadline=None)
@given(
    spelled=tokenisations(),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_pieces_joined_are_the_whole_answer_cut_at_the_first_stop(
    spelled: tuple[list[bytes], list[int]], stops: list[str], include: bool
) -> None:
    pieces, sizes = spelled
    names = list(dict.fromkeys(pieces))
    ids = [names.index(piece) for piece in pieces]
    params = SamplingParams(stop=tuple(stops), include_stop_str_in_output=include)
    text, num_tokens, reason, stop = expected(pieces, stops, params)
    written, shown = answer(params, byte_tokenizer(names)), ""
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        run = ids[end - size : end]
        piece = written.push(run, "length" if end >= len(ids) else None)
        shown += piece.text
        assert text.startswith(shown)
        assert piece.num_tokens <= len(run)
        if piece.finish_reason is not None:
            break
    assert shown == text
    assert (written.num_tokens, written.finish_reason, written.stopped_by) == (num_tokens, reason, stop)


def said(written: Answer, *runs: tuple[list[int], Any]) -> tuple[list[str], Piece]:
    pieces = [written.push(run, reason) for run, reason in runs]
    return [piece.text for piece in pieces], pieces[-1]


def test_what_may_begin_a_stop_is_held_back_until_it_is_decided() -> None:
    params = SamplingParams(stop=("Stop!",))
    texts, last = said(answer(params), ([HELLO, ST], None), ([OP], None), ([DOT], None), ([ST, OP, BANG, WOR], None))
    assert texts == ["Hello", "", "Stop. ", ""]
    assert (last.num_tokens, last.finish_reason, last.stopped_by) == (3, "stop", "Stop!")


def test_what_was_held_back_comes_at_the_end() -> None:
    texts, last = said(answer(SamplingParams(stop=("Stop!",))), ([ST, OP], None), ([HEAD], "length"))
    assert texts == ["", "Stop\ufffd"]
    assert (last.num_tokens, last.finish_reason, last.stopped_by) == (1, "length", None)


def test_the_stop_is_shown_where_that_is_wanted() -> None:
    params = SamplingParams(stop=("o",), include_stop_str_in_output=True)
    texts, last = said(answer(params), ([HELLO, WOR], None))
    assert (texts, last.num_tokens) == (["Hello"], 1)


def test_a_stop_string_and_the_token_limit_in_one_token_are_a_stop() -> None:
    _, last = said(answer(SamplingParams(stop=("ld",))), ([WOR, LD], "length"))
    assert (last.num_tokens, last.finish_reason) == (2, "stop")


def test_a_stop_string_before_the_stop_token_wins() -> None:
    params = SamplingParams(stop=("wor",), stop_token_ids=(DOT,))
    texts, last = said(answer(params), ([HELLO, WOR, LD, DOT], "stop"))
    assert (texts, last.num_tokens, last.stopped_by) == (["Hello "], 2, "wor")


@pytest.mark.parametrize("include", [True, False])
def test_the_text_of_a_stop_token_is_not_shown_unless_it_is_wanted(include: bool) -> None:
    params = SamplingParams(stop_token_ids=(DOT,), include_stop_str_in_output=include)
    texts, last = said(answer(params), ([HELLO, DOT], "stop"))
    assert texts == ["Hello. " if include else "Hello"]
    assert (last.num_tokens, last.finish_reason, last.stopped_by) == (2, "stop", DOT)


def test_the_models_own_end_is_not_named() -> None:
    _, last = said(answer(SamplingParams(stop_token_ids=(DOT,))), ([HELLO, len(WORDS)], "stop"))
    assert (last.num_tokens, last.finish_reason, last.stopped_by) == (2, "stop", None)


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    for min_tokens, num_tokens in ((0, 1), (1, 4), (3, 4)):
        written = answer(SamplingParams(stop=("o",), min_tokens=min_tokens))
        written.push([HELLO, LD, BANG])
        written.push([WOR, WOR], "length")
        assert written.num_tokens == num_tokens


def test_what_comes_after_the_end_is_dropped() -> None:
    written = answer(SamplingParams(stop=("H",)))
    written.push([HELLO])
    assert written.push([WOR], "length") == Piece(text="", num_tokens=0, finish_reason="stop", stopped_by="H")
    assert (written.num_tokens, written.finish_reason) == (1, "stop")


def test_special_tokens_can_be_kept() -> None:
    tokenizer = byte_tokenizer(WORDS, special=["<call>", "<end>"])
    written = Answer(tokenizer, SamplingParams(stop=("<call>o",)), kept=("<call>", "<unknown>"))
    assert written.push([HELLO, len(WORDS), len(WORDS) + 1, WOR]).text == "Hello<call> wor"


def test_without_a_tokenizer_there_is_no_text_and_no_stop_string() -> None:
    written = Answer(None, SamplingParams(stop_token_ids=(7,)))
    assert written.push([3, 7], "stop") == Piece(text="", num_tokens=2, finish_reason="stop", stopped_by=7)
    with pytest.raises(RequestError, match="need a tokenizer"):
        Answer(None, SamplingParams(stop=("x",)))


def test_it_needs_no_torch() -> None:
    code = "import sys, outpace.engine.answer; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
