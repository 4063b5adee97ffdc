"""A model's tokens as the grammar library asks for them, as plain data that another process can be told."""

from __future__ import annotations

import msgspec
from llguidance import LLTokenizer, TokenizerWrapper

from outpace.models.text.tokenizer import Tokenizer


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens by id, as bytes. The end of an answer is an id of its own behind the model's."""

    tokens: list[bytes]
    special_token_ids: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, num_ids: int) -> Vocabulary:
        """Tokens of a model with so many ids.

        Raises:
            RequestError: its tokens have no bytes of their own.
        """
        texts = tokenizer.token_bytes()[:num_ids]
        names = {i: token.content for i, token in tokenizer.backend.get_added_tokens_decoder().items()}
        # A special token is written as the byte 0xFF and its name; no other may begin so, and none of a text does.
        tokens = [
            (b"\xff" + names[i].encode() if i in names else b"") if text is None else text.removeprefix(b"\xff")
            for i, text in enumerate(texts)
        ]
        tokens += [b""] * (num_ids - len(texts))
        tokens.append(b"\xff<end of the answer>")
        special = [i for i, text in enumerate(texts) if text is None and i in names]
        return cls(tokens=tokens, special_token_ids=[*special, num_ids])

    @property
    def num_ids(self) -> int:
        """Of the model, which is the id of the end, too."""
        return len(self.tokens) - 1

    def indexed(self) -> LLTokenizer:
        """The library's own index of it, which takes a second or more to make."""
        return LLTokenizer(TokenizerWrapper(_Asked(self)))


class _Asked:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids
        self.eos_token_id = vocabulary.num_ids

    def __call__(self, text: bytes | str) -> list[int]:
        """It would spell out what a grammar forces; nothing here is forced, only masked."""
        return []
