"""Texts to token ids on the HTTP side. A long one goes to a thread, where it stops neither the engine nor other
requests; a short one is done at once, since handing it over takes longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any, TypeVar

from outpace.errors import RequestError
from outpace.models.gguf.file import GgufFile
from outpace.models.source import Source
from outpace.models.text.chat_template import Message
from outpace.models.text.past_calls import with_argument_objects, with_named_texts
from outpace.models.text.tokenizer import Tokenizer
from outpace.server.text.spelling import Spelling

SHORT = 2048
"""Characters, or token ids."""
BRIEF_S = 0.02
"""What a short text may take. A template may compute for long whatever it is given: then all of them go to threads."""
TO_TRUST = 100
"""Short texts in a row that must be brief in threads before they are done at once again: what is slow now and then may
hold others up once in so many."""
CHARACTERS = 128
"""Most of them a token of the context: what has more cannot fit, and is not spelled to find that out."""

Found = TypeVar("Found")


class Texts:
    """A model's tokenizer and chat template.

    Args:
        tokenizer: None for a checkpoint without one; only token ids are then served.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._to_trust = 0
        """Brief texts that are missing before short ones are done at once."""
        self._spelled: dict[int, Spelling] = {}

    @classmethod
    def of(cls, source: Source) -> Texts:
        """Reads them without weights.

        Raises:
            CheckpointError: they are broken.
        """
        if source.kind == "gguf":
            return cls(Tokenizer.from_gguf_fields(GgufFile(source.path).metadata, source.path))
        return cls(Tokenizer.from_directory(source.path))

    async def prompt_ids(self, prompt: str | list[int], context: int, *, add_special: bool = True) -> list[int]:
        """Token ids of a text for a context of so many tokens, or the ids themselves.

        Raises:
            RequestError: no tokenizer, no Unicode, or a text that is far too long.
        """
        if not isinstance(prompt, str):
            return prompt
        _check_length(prompt, context)
        tokenizer = self._required()
        return await self._done(len(prompt), lambda: tokenizer.encode(prompt, add_special))

    @property
    def chat_template(self) -> str | None:
        """The Jinja source."""
        return None if self._tokenizer is None else self._tokenizer.chat_template

    async def chat_ids(
        self,
        messages: Sequence[dict[str, Any]],
        context: int,
        tools: Sequence[dict[str, Any]] | None = None,
        **options: Any,
    ) -> list[int]:
        """Token ids of a conversation, ending with the opening of the answer.

        Args:
            messages: with the arguments of past calls as JSON texts.
            context: tokens that it holds.
            tools: functions that the model is shown.
            options: further ones of `ChatTemplate.render`.

        Raises:
            RequestError: no tokenizer or template, or messages that it refuses.
        """
        tokenizer = self._required()
        size = sum(map(_size, messages)) + (SHORT if tools else 0)

        def encode() -> list[int]:
            text = _rendered(tokenizer, with_argument_objects(messages), tools=tools, **options)
            _check_length(text, context)
            return tokenizer.encode(text)

        return await self._done(size, encode)

    def word_ids(self, words: Sequence[str | list[int]]) -> list[list[int]]:
        """Runs of token ids out of words that may be texts; a text is spelled with and without a space in front.

        Raises:
            RequestError: no tokenizer, or no Unicode.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            spellings = (word.lstrip(), " " + word.lstrip()) if isinstance(word, str) else (word,)
            for spelling in spellings:
                ids = self._required().encode(spelling) if isinstance(spelling, str) else spelling
                found[tuple(ids)] = None
        return [list(ids) for ids in found if ids]

    async def text(self, token_ids: list[int], *, skip_special: bool) -> str:
        """The text of token ids.

        Raises:
            RequestError: no tokenizer.
        """
        tokenizer = self._required()
        return await self._done(len(token_ids), lambda: tokenizer.decode(token_ids, skip_special))

    def spell(self, token_id: int) -> Spelling:
        """One token, special ones too; nothing without a tokenizer."""
        spelling = self._spelled.get(token_id)
        if spelling is None:
            spelling = Spelling(*("", b"") if self._tokenizer is None else self._tokenizer.spell(token_id))
            self._spelled[token_id] = spelling
        return spelling

    def special_id(self, token: str) -> int | None:
        """The id of a token that texts leave out as special; None for any other text."""
        return None if self._tokenizer is None else self._tokenizer.special_id(token)

    async def _done(self, size: int, work: Callable[[], Found]) -> Found:
        if size >= SHORT:
            return await asyncio.to_thread(work)
        return await asyncio.to_thread(self._timed, work) if self._to_trust else self._timed(work)

    def _timed(self, work: Callable[[], Found]) -> Found:
        began = thread_time()
        try:
            return work()
        finally:
            self._to_trust = TO_TRUST if thread_time() - began >= BRIEF_S else max(0, self._to_trust - 1)

    def _required(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestError("the model came without a tokenizer: give the prompt as token ids, to /v1/completions")
        return self._tokenizer


def _rendered(tokenizer: Tokenizer, messages: Sequence[Message], **options: Any) -> str:
    """A conversation; templates that cannot show broken arguments of past calls as they are get them named."""
    try:
        return tokenizer.render_chat(messages, **options)
    except RequestError:
        if (named := with_named_texts(messages)) == messages:
            raise
        return tokenizer.render_chat(named, **options)


def _size(message: dict[str, Any]) -> int:
    """Characters of a message; what is more than one text counts as long."""
    content = message.get("content")
    return len(content) + 16 if isinstance(content, str) and "tool_calls" not in message else SHORT


def _check_length(text: str, context: int) -> None:
    if len(text) > CHARACTERS * context:
        raise RequestError(
            f"the prompt has {len(text)} characters; for a context of {context} tokens {CHARACTERS * context} are "
            "taken: shorten it"
        )
