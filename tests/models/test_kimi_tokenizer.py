"""Kimi's tokenizer against tiktoken itself on a made-up vocabulary; its chat template; files that are refused."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kimi_files import (
    CALL_TOKENS,
    SPECIAL_TOKENS,
    WHOLE,
    control_tokens,
    ranks,
    write_kimi,
)
from models.texts import texts
from outpace.errors import CheckpointError, RequestError
from outpace.models.text import kimi_tokenizer
from outpace.models.text.tokenizer import IncrementalDecoder, Tokenizer

PUBLISHED_PATTERN = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
ORACLE = tiktoken.Encoding(
    name="made-up", pat_str=PUBLISHED_PATTERN, mergeable_ranks=dict(ranks()), special_tokens=control_tokens()
)
FRAGMENTS = (
    *("日本語のテキスト", "漢字", "中文English混合", "〇二三", "한국어", "々〆ヶ", "㐀𠀀", "，。！", "ｶﾞ", "ﷺ"),
    *("😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301", "ŒUVRE", "ǅ", "ʰ", "नमस्ते", "שלום", "ﬁ", "İ", "ſ", "K"),
    *("1", "12", "1234567", "٣٤٥", "½", "Ⅷ", "²", "3.14", "0x7f"),
    *("I'm", "IT'S", "we'll", "they'RE", "don't", "'tis", "x'd", "漢's", "’s", "'ſ"),
    *(" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\x0b", " \n ", "\n\n\n\n\n", "\u2028"),
    *("CamelCase", "snake_case", "...", "---\n", "!?", "{}", "\x00", "\ufffd", *WHOLE, *SPECIAL_TOKENS, *CALL_TOKENS),
    *("<|im_", "<|reserved_token_", "[BOS", "the ", "quick"),
)
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4)), max_size=12).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    found = Tokenizer.from_directory(write_kimi(tmp_path_factory.mktemp("kimi")))
    assert found is not None
    return found


@settings(max_examples=500, deadline=None)
@given(TEXTS)
def test_ids_and_texts_are_those_of_tiktoken(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == ORACLE.encode(text, allowed_special="all")
    assert tokenizer.decode(ids, skip_special=False) == text


def test_ids_of_many_texts_are_those_of_tiktoken(tokenizer: Tokenizer) -> None:
    for text in texts():
        assert tokenizer.encode(text) == ORACLE.encode(text, allowed_special="all"), text


def test_characters_are_split_as_by_tiktoken(tokenizer: Tokenizer) -> None:
    """Both know the same letters, marks, numbers and Chinese characters: a sample; all were tried once."""
    for code in (
        *range(0x3400),
        *range(0x3400, 0xD800, 23),
        *range(0xE000, 0x32400, 11),
        *range(0x32400, 0x110000, 997),
    ):
        text = f"a{chr(code)}b漢{chr(code)}1"
        assert tokenizer.encode(text) == ORACLE.encode(text, allowed_special="all"), hex(code)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, len(ranks()) + 255), max_size=20), st.booleans())
def test_decoding_any_ids(tokenizer: Tokenizer, ids: list[int], skip_special: bool) -> None:
    special = {index for name, index in control_tokens().items() if name not in CALL_TOKENS}
    shown = [index for index in ids if not (skip_special and index in special)]
    expected = ORACLE.decode(shown)
    assert tokenizer.decode(ids, skip_special) == expected
    decoder = IncrementalDecoder(tokenizer, skip_special)
    pieces = [decoder.push([index]) for index in ids]
    assert "".join(pieces) + decoder.finish() == expected


def test_tokens_have_their_bytes(tokenizer: Tokenizer) -> None:
    found = tokenizer.token_bytes()
    assert len(found) == tokenizer.vocab_size == len(ranks()) + 256
    for index, content in enumerate(found):
        if content is not None:
            assert content == ORACLE.decode_single_token_bytes(index)
    shown = [control_tokens()[name] for name in CALL_TOKENS]
    assert [index for index in range(len(ranks()), len(found)) if found[index] is not None] == shown


def published_cut(text: str, most: int) -> Iterator[str]:
    """The loop that the published tokenizer cuts long runs by, spelled out."""
    start, length = 0, 0
    for place, character in enumerate(text):
        same = place > 0 and character.isspace() == text[place - 1].isspace()
        length = length + 1 if same else 1
        if length > most:
            yield text[start:place]
            start, length = place, 1
    yield text[start:]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["a" * 7, "漢" * 12, " " * 9, "\n", "b", "\u3000"]), min_size=1, max_size=8).map("".join)
)
def test_long_runs_are_cut_where_the_published_tokenizer_cuts(text: str) -> None:
    assert list(kimi_tokenizer.pieces(text, 5)) == list(published_cut(text, 5))


def test_a_long_text_without_spaces(tokenizer: Tokenizer) -> None:
    text = "x" + "a" * 60_000 + " 漢字"
    cut = [text[:25_000], text[25_000:50_000], text[50_000:]]
    assert tokenizer.encode(text) == [index for piece in cut for index in ORACLE.encode(piece, allowed_special="all")]
    assert tokenizer.encode(text) != ORACLE.encode(text, allowed_special="all")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_names_and_ends(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_id == control_tokens()["[EOS]"]
    assert tokenizer.special_tokens["pad_token"] == "[PAD]"
    assert tokenizer.encode("<|im_end|>") == [control_tokens()["<|im_end|>"]]
    assert tokenizer.encode("Hi", add_special=True) == tokenizer.encode("Hi")
    with pytest.raises(RequestError, match="surrogates"):
        tokenizer.encode("\ud800")


def test_its_chat_with_tools_in_order(tokenizer: Tokenizer) -> None:
    tool = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "functions.time:0", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "När?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.time:0", "content": "noon"},
    ]
    text = tokenizer.render_chat(messages, tools=[tool])
    assert text == (
        '<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"time","parameters":{"properties":{},"type":'
        '"object"}},"type":"function"}]<|im_end|><|im_user|>user<|im_middle|>När?<|im_end|>'
        "<|im_assistant|>assistant<|im_middle|>Let me see.<|tool_calls_section_begin|><|tool_call_begin|>"
        "functions.time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.time:0\nnoon<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )
    assert tokenizer.encode_chat(messages, tools=[tool]) == ORACLE.encode(text, allowed_special="all")


def test_the_chat_template_may_be_a_file(tmp_path: Path) -> None:
    write_kimi(tmp_path, chat_template=None)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    found = Tokenizer.from_directory(tmp_path)
    assert found is not None
    assert found.render_chat([{"role": "user", "content": "Hi"}]) == "Hi<|im_end|>"


def test_its_python_is_not_run(tmp_path: Path) -> None:
    found = Tokenizer.from_directory(write_kimi(tmp_path))
    assert found is not None
    assert any("auto_map is ignored" in note for note in found.notes)
    assert not (tmp_path / "it-ran").exists()
    subprocess.run([sys.executable, tmp_path / "tokenization_kimi.py"], check=True)
    assert (tmp_path / "it-ran").exists(), "the file would have told"


def written(*lines: bytes) -> bytes:
    return b"\n".join(lines)


def line(token: bytes, rank: int) -> bytes:
    return base64.b64encode(token) + b" " + str(rank).encode()


BYTES = [line(bytes((byte,)), byte) for byte in range(256)]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (written(*BYTES, line(b" " * 300_000, 256)), "line 257: a token of 300000 bytes; 1024 are most"),
        (written(*BYTES, b"!!! 256"), "line 257: b'!!! 256' is no token in base64"),
        (written(*BYTES, b"YWI="), "line 257"),
        (written(*BYTES, b"YWI= x"), "line 257"),
        (written(*BYTES, line(b"ab", 257)), "has rank 257; .* here comes 256"),
        (written(*BYTES, line(b"a", 256)), "line 257: token b'a' has rank 256; tokens must differ"),
        (written(*BYTES, line(b"ab", -1)), "rank -1"),
        (written(*BYTES[:-1]), "the byte 0xff is no token"),
        (b"", "the byte 0x00 is no token"),
    ],
)
def test_a_broken_vocabulary_is_refused(tmp_path: Path, content: bytes, named: str) -> None:
    write_kimi(tmp_path)
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=named):
        Tokenizer.from_directory(tmp_path)


FIRST = len(ranks())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}}, "tokenization_qwen"),
        ({"auto_map": None}, "names None"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, "must map ids"),
        ({"added_tokens_decoder": {"5": {"content": "y"}}}, f"id 5; control tokens have ids {FIRST}"),
        ({"added_tokens_decoder": {str(FIRST + 256): {"content": "y"}}}, f"id {FIRST + 256}"),
        ({"added_tokens_decoder": None}, "bos_token '\\[BOS\\]' is no control token"),
        ({"eos_token": "the"}, "eos_token 'the' is no control token"),
        (
            {"added_tokens_decoder": {str(FIRST): {"content": "[BOS]"}, str(FIRST + 1): {"content": "[BOS]"}}},
            f"'\\[BOS\\]' would have id {FIRST + 1} and is {FIRST} already",
        ),
    ],
)
def test_a_config_that_contradicts_it_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    write_kimi(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=named):
        Tokenizer.from_directory(tmp_path)
