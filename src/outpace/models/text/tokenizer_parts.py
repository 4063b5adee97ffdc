"""What a tokenizer is made of, whatever file it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """`backend` does the work; the rest is what it does not know."""

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """bos_token, eos_token, … as the chat template knows them; absent ones are left out."""
    chat_template: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences about what in the files was not used."""
    max_run: int | None = None
    """Texts are encoded in pieces without longer runs of white space or of anything else; None encodes them whole."""
    sorts_tools: bool = False
    """The chat template is given tools with the keys of their objects in order."""
    numbers_calls: bool = False
    """Past tool calls have the ids that Kimi knows: see `past_calls.with_numbered_ids`."""
