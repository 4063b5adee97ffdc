"""Texts to token ids and back, chat prompts, and text that is emitted while its tokens arrive.

The work is done by a `tokenizers` backend, read from a checkpoint's directory (`tokenizer_files`; `kimi_tokenizer` for
tiktoken.model) or a GGUF header (`gguf_tokenizer`); encoding and decoding are equal to transformers' on the same files.
One difference is deliberate: `clean_up_tokenization_spaces` is never applied, because it changes text that was already
emitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.errors import RequestError
from outpace.models.text.chat_template import ChatTemplate, Message
from outpace.models.text.gguf_tokenizer import read_gguf_tokenizer
from outpace.models.text.kimi_tokenizer import pieces, read_kimi
from outpace.models.text.past_calls import with_numbered_ids
from outpace.models.text.stream import ByteStream, TextStream, WindowStream
from outpace.models.text.token_bytes import bytes_of, decoder_steps, token_bytes
from outpace.models.text.tokenizer_files import read_directory
from outpace.models.text.tokenizer_parts import TokenizerParts

LONG_TEXT = 4096
"""Characters or token ids above which other threads go on meanwhile: the backend's `encode` and `decode` hold Python's
lock for seconds, a batch of one does not."""


class Tokenizer:
    """A checkpoint's tokenizer. Thread-safe: nothing changes after it was made."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.backend = parts.backend
        self.special_tokens = dict(parts.special_tokens)
        self.notes = parts.notes
        self._template: ChatTemplate | None = None
        if parts.chat_template is not None:
            self._template = ChatTemplate(parts.chat_template, self.special_tokens, sorts_tools=parts.sorts_tools)
        self._max_run, self._numbers_calls = parts.max_run, parts.numbers_calls
        added = parts.backend.get_added_tokens_decoder()
        self._skipped = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size: int = max(parts.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the largest id. A model may have more rows, of which no text is made."""
        self._is_byte_level = [step["type"] for step in decoder_steps(parts.backend)] == ["ByteLevel"]

    @classmethod
    def from_directory(cls, path: Path | str) -> Tokenizer | None:
        """The tokenizer of a checkpoint's directory; None if it has neither tokenizer.json nor Kimi's tiktoken.model.

        Raises:
            CheckpointError: a tokenizer file is broken or contradicts another.
        """
        parts = read_directory(Path(path)) or read_kimi(Path(path))
        return None if parts is None else cls(parts)

    @classmethod
    def from_gguf_fields(cls, metadata: Mapping[str, Any], path: Path) -> Tokenizer | None:
        """The tokenizer in a GGUF file's metadata; None if it has no vocabulary. `path` is for messages.

        Raises:
            CheckpointError: it is of an unsupported kind, or contradicts itself.
        """
        parts = read_gguf_tokenizer(metadata, path)
        return None if parts is None else cls(parts)

    @property
    def eos_token_id(self) -> int | None:
        """The token that the tokenizer calls the end. What ends an answer is `TargetConfig.eos_token_ids`."""
        token = self.special_tokens.get("eos_token")
        found: int | None = None if token is None else self.backend.token_to_id(token)
        return found

    @property
    def chat_template(self) -> str | None:
        """The Jinja source."""
        return None if self._template is None else self._template.source

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids of a text. Control tokens that are spelled in it become their ids.

        Args:
            text: any text; it may be empty.
            add_special: also put what the model expects around a plain text (such as a beginning-of-text token).

        Raises:
            RequestError: the text has lone surrogates, which are not Unicode text.
        """
        try:
            if self._max_run is not None and len(text) > self._max_run:
                return [index for piece in pieces(text, self._max_run) for index in self.backend.encode(piece).ids]
            if len(text) > LONG_TEXT:
                return list(self.backend.encode_batch_fast([text], add_special_tokens=add_special)[0].ids)
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special).ids
        except TypeError as error:
            raise RequestError("the text is not Unicode: remove its lone surrogates (U+D800 to U+DFFF)") from error
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; ids without a token give none. Broken UTF-8 becomes U+FFFD.

        Raises:
            RequestError: an id is negative or above 2**32 - 1.
        """
        try:
            if len(ids) > LONG_TEXT:
                return str(self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special)[0])
            text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        except OverflowError as error:
            raise RequestError(f"token ids must lie in 0 … {2**32 - 1}; these are {min(ids)} … {max(ids)}") from error
        return text

    def token_bytes(self) -> list[bytes | None]:
        """By id, what a token adds to a text; None for special tokens and ids without one.

        Raises:
            RequestError: this kind of tokenizer has no bytes a token.
        """
        return token_bytes(self.backend, self._skipped)

    def spell(self, token_id: int) -> tuple[str, bytes | None]:
        """One token, special or not, as a text in which U+FFFD stands for a part of a character, and its bytes; None
        where they are not known."""
        text = self.decode([token_id], skip_special=False)
        if "\ufffd" not in text:
            return text, text.encode()
        return text, bytes_of(self.backend, token_id, byte_level=self._is_byte_level)

    def special_id(self, token: str) -> int | None:
        """The id of a token that decoding leaves out as special; None for any other text."""
        found: int | None = self.backend.token_to_id(token)
        return found if found in self._skipped else None

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **options: Any) -> str:
        """The prompt text of a conversation: see `ChatTemplate.render`, which takes the options.

        Raises:
            RequestError: the model has no chat template, or the messages do not fit it.
        """
        if self._template is None:
            raise RequestError("the model has no chat template: give the prompt as a text or as token ids")
        if self._numbers_calls and isinstance(messages, list | tuple):
            messages = with_numbered_ids(messages)
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **options)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **options: Any) -> list[int]:
        """The prompt of a conversation, ending with the opening of the answer. The template writes what is special.

        Options (tools, …) and errors are `ChatTemplate.render`'s.
        """
        return self.encode(self.render_chat(messages, add_generation_prompt, **options))

    def stream(self, skip_special: bool = True, kept: Collection[str] = ()) -> TextStream:
        """A fresh incremental decoding; see `IncrementalDecoder`."""
        skipped = self._skipped - set(map(self.backend.token_to_id, kept)) if skip_special else frozenset()
        return ByteStream(self.backend, skipped) if self._is_byte_level else WindowStream(self.backend, skipped)


class IncrementalDecoder:
    """Emits one answer's text while its tokens arrive.

    It never emits half a character and never the same text twice; all pieces joined are `decode` of all ids. The cost
    of a token does not depend on how many came before it.

    Args:
        tokenizer: the model's.
        skip_special: special tokens give no text.
        kept: special tokens that give theirs nevertheless.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, kept: Collection[str] = ()) -> None:
        self._stream = tokenizer.stream(skip_special, kept)

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain now that these ids came; often empty in the middle of a character."""
        return self._stream.push(ids)

    def finish(self) -> str:
        """What was held back, at the end of the answer. An unfinished character becomes U+FFFD."""
        return self._stream.finish()
