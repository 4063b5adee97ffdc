"""A token's bytes are what it adds to a text: joined, they are the decoding of all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import decoders, models

from models.byte_pieces import byte_tokenizer
from models.test_tokenizer import metaspace, of_gguf
from models.texts import CONTROL, texts
from models.vocabularies import USER_TOKENS, byte_level_metadata, sentencepiece_metadata
from outpace import RequestError
from outpace.models.registry import describe_target
from outpace.models.source import locate
from outpace.models.text.tokenizer import Tokenizer
from outpace.models.text.tokenizer_parts import TokenizerParts

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": lambda: of_gguf(byte_level_metadata()),
    "sentencepiece": lambda: of_gguf(sentencepiece_metadata()),
    "metaspace": metaspace,
}


def check(tokenizer: Tokenizer) -> None:
    found = tokenizer.token_bytes()
    assert len(found) == tokenizer.vocab_size
    for text in texts():
        ids = [i for i in tokenizer.encode(text) if found[i] is not None]
        joined = b"".join(found[i] or b"" for i in ids).decode("utf-8", errors="replace")
        decoded = tokenizer.decode(ids)
        assert decoded in (joined, joined.removeprefix(" ")), text


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_joined_are_the_text(kind: str) -> None:
    check(KINDS[kind]())


@pytest.mark.real_model
def test_the_real_vocabulary_has_bytes() -> None:
    tokenizer = describe_target(locate("smollm2")).tokenizer
    assert tokenizer is not None
    check(tokenizer)
    assert all(tokenizer.token_bytes()[tokenizer.backend.token_to_id(token)] is None for token in CONTROL)


def test_special_tokens_have_none_and_added_ones_are_spelled_as_they_are() -> None:
    tokenizer = of_gguf(byte_level_metadata())
    found = tokenizer.token_bytes()
    assert [found[tokenizer.backend.token_to_id(token)] for token in CONTROL] == [None] * 3
    assert [found[tokenizer.backend.token_to_id(token)] for token in USER_TOKENS] == [t.encode() for t in USER_TOKENS]
    assert byte_tokenizer([b"\xc3", b"\xff", b" a\n"], special=["<end>"]).token_bytes() == [
        b"\xc3",
        b"\xff",
        b" a\n",
        None,
    ]


def test_byte_tokens_are_bytes() -> None:
    tokenizer = of_gguf(sentencepiece_metadata())
    found = tokenizer.token_bytes()
    assert [found[tokenizer.backend.token_to_id(f"<0x{byte:02X}>")] for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]


def test_a_decoder_that_looks_at_neighbours_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    for decoder in (decoders.WordPiece(), None):
        backend.decoder = decoder
        with pytest.raises(RequestError, match="grammar"):
            Tokenizer(TokenizerParts(backend=backend)).token_bytes()
