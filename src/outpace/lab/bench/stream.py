"""Reads one streamed answer, event by event, in the dialects of OpenAI's API that servers speak.

| what | ours | vLLM | SGLang |
|---|---|---|---|
| usage | one event at the end | the same, or in every event | the same, or in every event |
| finish | an event of its own | with the last text | an event of its own |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outpace.lab.bench.answer import Answer, Piece
from outpace.lab.bench.asks import Ask
from outpace.lab.bench.told import beside_usage, part, speculation, whole

MOST_PIECES = 16
"""Of text, a token: what comes between may cut tokens into pieces, but not into ever more."""
TEXTS = ("content", "reasoning_content", "reasoning", "text")


class Stream:
    """What came so far.

    Args:
        ask: what was asked.
        sent_s: when.
        max_tokens: of the answer, as was asked.
    """

    def __init__(self, ask: Ask, sent_s: float, max_tokens: int) -> None:
        self._ask, self._sent_s, self._max_tokens = ask, sent_s, max_tokens
        self._pieces: list[Piece] = []
        self._usage: dict[str, Any] = {}
        self._beside: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self._error: str | None = None
        self._text: list[str] = []

    @property
    def is_broken(self) -> bool:
        """Nothing that comes now would mend it."""
        return self._error is not None

    def event(self, at_s: float, data: str) -> None:
        """The data of one server-sent event."""
        if data == "[DONE]" or self._error is not None:
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self._error = f"broken stream: an event is no JSON object: {data[:80]}"
            return
        if event.get("error"):
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            self._error = f"error in the stream: {message}"
            return
        usage, choices = event.get("usage"), event.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            self._error = f"broken stream: its choices are no list of objects: {data[:80]}"
            return
        self._usage = usage if isinstance(usage, dict) else self._usage
        self._beside |= beside_usage(event)
        for choice in choices:
            self._choice(at_s, choice, part(usage))
            self._beside |= beside_usage(choice)

    def _choice(self, at_s: float, choice: dict[str, Any], usage: Mapping[str, Any]) -> None:
        delta = part(choice.get("delta")) or choice
        text = "".join(delta[name] for name in TEXTS if isinstance(delta.get(name), str))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if len(self._pieces) > MOST_PIECES * (1 + self._max_tokens):
            self._error = f"endless stream: {len(self._pieces):,} pieces for {self._max_tokens:,} tokens at most"
            return
        if not text and (not choice.get("finish_reason") or not self._pieces):
            return
        so_far = whole(usage.get("completion_tokens"))
        self._pieces.append(Piece(at_s=at_s, num_characters=len(text), tokens_so_far=so_far))
        self._text.append(text)

    def answer(self, ended_s: float) -> Answer:
        """After the stream's end."""
        if self._error is not None:
            return self._made(ended_s, self._error)
        if self._finish_reason is None:
            return self._made(ended_s, "cut stream: it ended without a finish reason")
        if not self._pieces:
            return self._made(ended_s, f"empty answer: no text before finish reason {self._finish_reason!r}")
        return self._made(ended_s, self._wrong_usage())

    def _wrong_usage(self) -> str | None:
        """Counts that cannot be, in which case no speed can be told."""
        tokens = self._usage.get("completion_tokens")
        if tokens is None or (whole(tokens) is not None and 1 <= tokens <= self._max_tokens):
            return None
        return f"wrong usage: it counts {tokens!r:.40} tokens in an answer with text, of {self._max_tokens:,} at most"

    def failed(self, ended_s: float, kind: str, said: str) -> Answer:
        """It broke off."""
        return self._made(ended_s, f"{kind}: {said}")

    def _made(self, ended_s: float, error: str | None) -> Answer:
        tokens = whole(self._usage.get("completion_tokens"))
        pieces = _told(self._pieces, tokens)
        return Answer(
            id=self._ask.id,
            set=self._ask.set,
            sent_s=self._sent_s,
            ended_s=ended_s,
            pieces=pieces,
            prompt_tokens=whole(self._usage.get("prompt_tokens")),
            cached_tokens=whole(part(self._usage.get("prompt_tokens_details")).get("cached_tokens")),
            completion_tokens=tokens,
            finish_reason=self._finish_reason,
            speculation=speculation(self._usage, self._beside),
            error=error,
            text="".join(self._text),
        )


def _told(pieces: list[Piece], total: int | None) -> tuple[Piece, ...]:
    """With the server's counts where every piece has one and they end at the total; else with none."""
    if pieces and pieces[-1].tokens_so_far is None and not pieces[-1].num_characters:
        pieces = [*pieces[:-1], replace(pieces[-1], tokens_so_far=total)]
    if all(piece.tokens_so_far is not None for piece in pieces) and pieces and pieces[-1].tokens_so_far == total:
        return tuple(pieces)
    return tuple(replace(piece, tokens_so_far=None) for piece in pieces)
