"""Tokenizers against transformers' own, against SentencePiece's algorithm spelled out, and decoding by properties."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread, get_ident
from time import clock_gettime, pthread_getcpuclockid
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from models.gguf_writing import GgufWriting
from models.texts import CONTROL, texts
from models.vocabularies import (
    CONTROL_TYPE,
    USER_DEFINED,
    USER_TOKENS,
    byte_level_metadata,
    sentencepiece_metadata,
)
from outpace.errors import CheckpointError, RequestError
from outpace.models.gguf.checkpoint import read_gguf
from outpace.models.source import locate
from outpace.models.text.stream import WindowStream
from outpace.models.text.tokenizer import IncrementalDecoder, Tokenizer
from outpace.models.text.tokenizer_parts import TokenizerParts

TEXTS = texts()
WITHOUT_DIGITS = [text for text in TEXTS if not re.search(r"\d|\N{SUPERSCRIPT TWO}|½", text)]

GPT2_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
UNSPLIT = GPT2_SPLIT | {"use_regex": False}
LLAMA3_PATTERN = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def of_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer.from_gguf_fields(metadata, Path("small.gguf"))
    assert tokenizer is not None
    return tokenizer


def bos_token_id(tokenizer: Tokenizer) -> int | None:
    found: int | None = tokenizer.backend.token_to_id(tokenizer.special_tokens["bos_token"])
    return found


def published(metadata: Mapping[str, Any], pre_tokenizer: Mapping[str, Any], **model: Any) -> PreTrainedTokenizerFast:
    """transformers' tokenizer for a tokenizer.json as the model's makers publish it."""
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    content = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": types[index] == CONTROL_TYPE,
            }
            for index, token in enumerate(tokens)
            if types[index] in (CONTROL_TYPE, USER_DEFINED)
        ],
        "pre_tokenizer": pre_tokenizer,
        "decoder": GPT2_SPLIT,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": list(metadata["tokenizer.ggml.merges"]),
            **model,
        },
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(content)))


def sequence(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def smollm(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    return published(metadata, sequence({"type": "Digits", "individual_digits": True}, GPT2_SPLIT))


def with_class(kind: type, metadata: Mapping[str, Any]) -> Any:
    """One of transformers' own classes with this vocabulary."""
    tokens = list(metadata["tokenizer.ggml.tokens"])
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    oracle = kind(vocab={token: index for index, token in enumerate(tokens)}, merges=merges, bos_token=CONTROL[0])
    oracle.add_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL], special_tokens=True)
    oracle.add_tokens([AddedToken(token, normalized=False) for token in USER_TOKENS])
    return oracle


ORACLES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "smollm": smollm,
    "gpt-2": lambda metadata: with_class(transformers.GPT2Tokenizer, metadata),
    "default": lambda metadata: with_class(transformers.GPT2Tokenizer, metadata),
    "qwen2": lambda metadata: with_class(transformers.Qwen2Tokenizer, metadata),
    "llama-bpe": lambda metadata: published(metadata, sequence(split(LLAMA3_PATTERN), UNSPLIT), ignore_merges=True),
    "tekken": lambda metadata: published(
        metadata, sequence(split(GGUF_PRE_TOKENIZER_SPLITS["tekken"]), UNSPLIT), ignore_merges=True
    ),
}


@pytest.mark.parametrize("pre", ORACLES)
def test_byte_level_tokens_are_those_of_transformers(pre: str) -> None:
    metadata = byte_level_metadata(pre)
    tokenizer, oracle = of_gguf(metadata), ORACLES[pre](metadata)
    assert len(TEXTS) == 300
    for text in TEXTS:
        ids = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special=False) == oracle.decode(ids)


def test_pre_tokenizers_differ_on_these_texts() -> None:
    """Otherwise the test above would prove little."""
    found = {pre: [of_gguf(byte_level_metadata(pre)).encode(text) for text in TEXTS] for pre in ORACLES}
    kinds = ("smollm", "gpt-2", "qwen2", "llama-bpe", "tekken")
    assert len({str(found[pre]) for pre in kinds}) == len(kinds)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_transformers_reads_the_same_file_alike_where_it_heeds_it(pre: str, tmp_path: Path) -> None:
    metadata = byte_level_metadata(pre)
    oracle = transformers_of_file(write(metadata, tmp_path / "x.gguf"))
    tokenizer = of_gguf(metadata)
    for text in WITHOUT_DIGITS if pre == "smollm" else TEXTS:
        assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False)


def write(metadata: Mapping[str, Any], path: Path) -> Path:
    writing = GgufWriting()
    writing.metadata |= {key: getattr(value, "tolist", lambda v=value: v)() for key, value in metadata.items()}
    writing.put("x", np.ones(1))
    return writing.write(path)


def transformers_of_file(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.real_model
def test_the_real_tokenizer_is_the_published_one() -> None:
    path = locate("smollm2").path
    reader = gguf.GGUFReader(path)
    keys = [f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges")]
    oracle = smollm({key: reader.fields[key].contents() for key in keys})
    tokenizer = read_gguf(path).tokenizer
    assert tokenizer is not None
    trapped = transformers_of_file(path)
    num_trapped = 0
    for text in TEXTS:
        ids = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        if text in WITHOUT_DIGITS:
            assert ids == trapped.encode(text, add_special_tokens=False)
        num_trapped += ids != trapped.encode(text, add_special_tokens=False)
    assert num_trapped
    assert tokenizer.eos_token_id == 2
    messages = [{"role": "user", "content": "In 1999, <|im_end|> 😀"}, {"role": "assistant", "content": "Yes."}]
    assert tokenizer.render_chat(messages) == trapped.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_control_tokens_in_a_text_are_their_ids() -> None:
    tokenizer = of_gguf(byte_level_metadata())
    start, end = (tokenizer.backend.token_to_id(token) for token in CONTROL[:2])
    assert tokenizer.encode("<|im_start|><|im_end|>") == [start, end]
    assert tokenizer.decode([start, end]) == ""
    assert tokenizer.decode([start, end], skip_special=False) == "<|im_start|><|im_end|>"
    assert tokenizer.decode(tokenizer.encode("<tool_call>")) == "<tool_call>"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, "{}"), ({"add_bos_token": True}, "B{}"), ({"add_bos_token": True, "add_eos_token": True}, "B{}E")],
)
def test_what_belongs_around_a_text(fields: dict[str, bool], expected: str) -> None:
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    tokenizer = of_gguf(metadata)
    around = expected.replace("B", CONTROL[0]).replace("E", CONTROL[1])
    assert tokenizer.encode("text", add_special=True) == tokenizer.encode(around.format("text"))


def test_llama3_begins_with_bos_unless_the_file_says_otherwise() -> None:
    metadata = byte_level_metadata("llama-bpe")
    assert of_gguf(metadata).encode("x", add_special=True)[0] == bos_token_id(of_gguf(metadata))
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert of_gguf(metadata).encode("x", add_special=True) == of_gguf(metadata).encode("x")


def test_a_token_that_the_file_does_not_have_is_not_named() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.unknown_token_id": 2**32 - 1}
    assert "unk_token" not in of_gguf(metadata).special_tokens


def sentencepiece(metadata: Mapping[str, Any], text: str) -> list[int]:
    """SentencePiece's BPE: join the best-scored neighbours, leftmost first; what is left becomes bytes."""
    tokens = metadata["tokenizer.ggml.tokens"]
    pieces = {
        token: (float(score), index)
        for index, (token, score, kind) in enumerate(
            zip(tokens, metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"], strict=True)
        )
        if kind == 1
    }
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(-pieces[a + b][0], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += (
            [pieces[symbol][1]] if symbol in pieces else [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
        )
    return ids


def test_sentencepiece_tokens_are_those_of_its_algorithm() -> None:
    metadata = sentencepiece_metadata()
    tokenizer = of_gguf(metadata)
    for text in texts(control=()):
        assert tokenizer.encode(text) == sentencepiece(metadata, text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a</s>b") == [*sentencepiece(metadata, "a"), 2, *sentencepiece(metadata, "b")]
    assert tokenizer.encode("a", add_special=True) == [1, *sentencepiece(metadata, "a")]


def test_sentencepiece_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    """Where both agree: transformers adds no space before a text that begins with one, SentencePiece always does."""
    metadata = sentencepiece_metadata()
    oracle = transformers_of_file(write(metadata, tmp_path / "x.gguf"))
    tokenizer = of_gguf(metadata)
    for text in TEXTS:
        if not text.startswith(" "):
            ids = tokenizer.encode(text)
            assert ids == oracle.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_sentencepiece_without_the_leading_space() -> None:
    tokenizer = of_gguf(sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.encode("the") != of_gguf(sentencepiece_metadata()).encode("the")
    assert tokenizer.decode(tokenizer.encode(" the ")) == " the "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "bert"}, "model is 'bert'"),
        ({"pre": "falcon"}, "pre-tokenizer, is 'falcon'; gpt-2, default, smollm"),
        ({"pre": None}, "pre-tokenizer, is None"),
        ({"tokens": None}, "tokens must be a list of texts"),
        ({"tokens": ["a", "a"]}, "'a' comes twice"),
        ({"merges": ["a nothing"]}, "merges disagree"),
        ({"merges": None}, "merges must be"),
        ({"token_type": np.array([1])}, "token_type must hold one number for each"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"add_bos_token": 1}, "add_bos_token is 1"),
    ],
)
def test_unsupported_vocabularies_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    with pytest.raises(CheckpointError, match=message):
        of_gguf(metadata)


def test_a_file_without_a_vocabulary_has_no_tokenizer() -> None:
    assert Tokenizer.from_gguf_fields({"general.architecture": "llama"}, Path("x")) is None
    assert Tokenizer.from_gguf_fields({"tokenizer.ggml.model": "none"}, Path("x")) is None


def test_scores_are_needed_for_sentencepiece() -> None:
    with pytest.raises(CheckpointError, match="scores must hold"):
        of_gguf(sentencepiece_metadata() | {"tokenizer.ggml.scores": None})


def test_odd_input_is_refused_as_the_requests_fault() -> None:
    tokenizer = of_gguf(byte_level_metadata())
    with pytest.raises(RequestError, match="lone surrogates"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(RequestError, match="-1"):
        tokenizer.decode([3, -1])
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])
    assert tokenizer.decode([tokenizer.vocab_size, 10**6]) == ""
    assert tokenizer.encode("") == []


def metaspace() -> Tokenizer:
    """Words with leading spaces, whose decoder drops the first one."""
    vocabulary = {"▁a": 0, "▁": 1, "b": 2, "▁▁": 3, "漢": 4, "<s>": 5, "�": 6}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="b"))
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(TokenizerParts(backend=backend))


@pytest.fixture(scope="module", params=["byte level", "sentencepiece", "metaspace"])
def tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    match request.param:
        case "byte level":
            yield of_gguf(byte_level_metadata())
        case "sentencepiece":
            yield of_gguf(sentencepiece_metadata())
        case _:
            yield metaspace()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip_special=st.booleans())
def test_pieces_joined_are_the_whole(data: st.DataObject, skip_special: bool, tokenizer: Tokenizer) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    decoder = IncrementalDecoder(tokenizer, skip_special)
    whole, text, position = tokenizer.decode(ids, skip_special), "", 0
    while position < len(ids):
        count = data.draw(st.integers(1, 5))
        text += decoder.push(ids[position : position + count])
        position += count
        assert whole.startswith(text)
    assert text + decoder.finish() == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=30), size=st.integers(1, 4))
def test_no_half_characters(text: str, size: int, tokenizer: Tokenizer) -> None:
    text = text.replace("\ufffd", "")
    ids = tokenizer.encode("漢字😀👩‍👩‍👧 " + text)
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    if tokenizer.vocab_size > 100:
        assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", ["byte level", "sentencepiece"], indirect=True)
def test_text_comes_as_soon_as_it_is_certain(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the\nthe\nthe\nthe")
    decoder = IncrementalDecoder(tokenizer)
    assert [decoder.push([index]) for index in ids] == [tokenizer.decode([ids[0]]), *map(bare(tokenizer), ids[1:])]


def bare(tokenizer: Tokenizer) -> Callable[[int], str]:
    """The text of a token in the middle."""
    return lambda index: tokenizer.decode([tokenizer.encode("x")[-1], index])[1:]


def test_a_broken_character_at_the_end_is_replaced() -> None:
    tokenizer = of_gguf(byte_level_metadata())
    ids = tokenizer.encode("ᚠ")
    assert len(ids) == 3
    decoder = IncrementalDecoder(tokenizer)
    assert decoder.push(ids[:2]) == ""
    assert decoder.finish() == tokenizer.decode(ids[:2]) == "\ufffd"


class Counting:
    """A backend that counts the ids it decodes."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend, self.num_decoded = backend, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def decode(self, ids: list[int], **options: Any) -> str:
        self.num_decoded += len(ids)
        return str(self.backend.decode(ids, **options))


@pytest.mark.parametrize("text", ["the fox jumps, " * 300, "ሰላም ልዑል" * 300, "\ufffd" * 2000])
def test_the_work_for_a_token_does_not_grow(text: str) -> None:
    tokenizer = of_gguf(sentencepiece_metadata())
    counting: Any = Counting(tokenizer.backend)
    stream = WindowStream(counting, frozenset())
    ids = tokenizer.encode(text)
    assert "".join(stream.push([index]) for index in ids) + stream.finish() == text
    assert counting.num_decoded <= 5 * len(ids)


TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint's directory with a tokenizer that transformers saved."""
    oracle = smollm(byte_level_metadata())
    oracle.add_special_tokens({"bos_token": CONTROL[0], "eos_token": CONTROL[1], "pad_token": "<pad>"})
    oracle.chat_template = TEMPLATE
    oracle.save_pretrained(tmp_path)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (content | changes).items() if value is not ...}))


def assert_same(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_directory(path)
    assert tokenizer is not None
    oracle = PreTrainedTokenizerFast.from_pretrained(path)
    assert tokenizer.vocab_size == len(oracle)
    assert tokenizer.special_tokens == oracle.special_tokens_map
    for text in TEXTS[:80] + ["<pad><new>plain<extra>"]:
        ids = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.encode(text, add_special=True) == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special=False) == oracle.decode(ids)
    return tokenizer


def assert_same_chat(path: Path, tokenizer: Tokenizer) -> None:
    oracle = PreTrainedTokenizerFast.from_pretrained(path)
    messages = [{"role": "user", "content": "Hi <|im_end|> 12"}, {"role": "assistant", "content": "日本 😀"}]
    expected = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(messages) == expected
    assert tokenizer.encode_chat(messages) == oracle.encode(expected, add_special_tokens=False)


def test_a_directory_is_read_as_transformers_reads_it(saved: Path) -> None:
    assert_same_chat(saved, assert_same(saved))


def test_padding_and_truncation_of_the_file_are_not_applied(saved: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    backend.save(str(saved / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(saved)
    assert tokenizer is not None
    assert len(tokenizer.encode("abcdefg 12345")) > 4
    assert tokenizer.decode(tokenizer.encode("abcdefg 12345")) == "abcdefg 12345"


@pytest.mark.parametrize("template", ["jinja file", "string", "list", "json file"])
def test_chat_templates_from_every_place(template: str, saved: Path) -> None:
    (saved / "chat_template.jinja").unlink()
    if template == "jinja file":
        (saved / "chat_template.jinja").write_text(TEMPLATE)
        edit(saved / "tokenizer_config.json", chat_template="another")
    elif template == "string":
        edit(saved / "tokenizer_config.json", chat_template=TEMPLATE)
    elif template == "list":
        named = [{"name": "tool_use", "template": "another"}, {"name": "default", "template": TEMPLATE}]
        edit(saved / "tokenizer_config.json", chat_template=named)
    tokenizer = Tokenizer.from_directory(saved)
    if template == "json file":  # of processors; transformers' tokenizers do not look at it
        assert tokenizer is not None
        assert tokenizer.chat_template is None
        edit(saved / "chat_template.json", chat_template=TEMPLATE)
        tokenizer = Tokenizer.from_directory(saved)
        assert tokenizer is not None
        assert tokenizer.chat_template == TEMPLATE
    else:
        assert tokenizer is not None
        assert_same_chat(saved, tokenizer)


def test_tokens_that_only_the_config_adds(saved: Path) -> None:
    size = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json")).get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {
        str(size): {"content": "<new>", "special": True, **flags},
        str(size + 1): {"content": "plain", "special": False, **flags},
    }
    edit(saved / "tokenizer_config.json", added_tokens_decoder=added, extra_special_tokens=["<extra>"])
    tokenizer = assert_same(saved)
    assert tokenizer.backend.token_to_id("<new>") == size


@pytest.mark.parametrize("framed", [True, False])
def test_tokenizer_json_says_what_belongs_around_a_text(framed: bool, saved: Path) -> None:
    if framed:
        backend = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
        pieces = [(CONTROL[0], backend.token_to_id(CONTROL[0]))]
        backend.post_processor = tokenizers.processors.TemplateProcessing(f"{CONTROL[0]} $A", special_tokens=pieces)
        backend.save(str(saved / "tokenizer.json"))
    edit(saved / "tokenizer_config.json", add_bos_token=not framed, add_eos_token=True)
    tokenizer = assert_same(saved)
    assert (tokenizer.encode("x", add_special=True)[0] == bos_token_id(tokenizer)) is framed


def test_names_from_the_old_special_tokens_map(saved: Path) -> None:
    edit(saved / "tokenizer_config.json", bos_token=..., eos_token=..., pad_token=...)
    old = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": False, "rstrip": False}}
    edit(saved / "special_tokens_map.json", **old)
    assert assert_same(saved).special_tokens == {"bos_token": CONTROL[0], "eos_token": CONTROL[1]}


def test_the_tokenizers_own_end(saved: Path) -> None:
    tokenizer = Tokenizer.from_directory(saved)
    assert tokenizer is not None
    assert tokenizer.eos_token_id == tokenizer.backend.token_to_id(CONTROL[1]) == 1


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_directory(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "cannot be read as a tokenizer"),
        ("tokenizer.json", "[" * 100_000, "cannot be read as a tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "must be a JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "cannot be read as JSON"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"3": {"content": "<|im_end|>"}}}', "is 3 there and 1"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', "must map ids"),
        ("tokenizer_config.json", r'{"bos_token": "\ud800"}', "lone surrogates"),
        ("tokenizer_config.json", r'{"added_tokens_decoder": {"9": {"content": "\udfff"}}}', "lone surrogates"),
        ("tokenizer_config.json", r'{"extra_special_tokens": ["\ud800x"]}', "lone surrogates"),
    ],
)
def test_broken_files_are_named(name: str, content: str, message: str, saved: Path) -> None:
    (saved / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.from_directory(saved)
    assert name in str(caught.value)


def test_a_long_text_lets_other_threads_go_on_and_has_the_same_tokens() -> None:
    """A word without an end: `encode` of tokenizers would hold Python's lock, and so all its work lie between two turns
    of another thread."""
    tokenizer = of_gguf(byte_level_metadata())
    text = "a" * 400_000
    clock, ended = pthread_getcpuclockid(get_ident()), Event()
    worked = [clock_gettime(clock)]

    def look() -> None:
        while not ended.wait(0.001):
            worked.append(clock_gettime(clock))

    other = Thread(target=look)
    other.start()
    found = tokenizer.encode(text)
    worked.append(clock_gettime(clock))
    ended.set()
    other.join()
    assert found == tokenizer.backend.encode(text, add_special_tokens=False).ids
    worked.sort()  # the last look may be behind the end
    assert max(after - before for before, after in pairwise(worked)) < 0.6 * (worked[-1] - worked[0])
    assert tokenizer.encode("ab " * 3000, True) == tokenizer.backend.encode("ab " * 3000).ids
