"""Reads one streamed answer, event by event, in the dialects of OpenAI's API that servers speak.

| what | ours | vLLM | SGLang |
|---|---|---|---|
| usage | one event at the end | the same, or in every event | the same, or in every event |
| speculation | `usage.speculation` | `metrics.speculative_decoding` | `usage.completion_tokens_details` |
| finish | an event of its own | with the last text | an event of its own |
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from outpace.lab.bench.answer import Answer, Piece, Speculation
from outpace.lab.bench.asks import Ask

TEXTS = ("content", "reasoning_content", "reasoning", "text")


class Stream:
    """What came so far.

    Args:
        ask: what was asked.
        sent_s: when.
    """

    def __init__(self, ask: Ask, sent_s: float) -> None:
        self._ask, self._sent_s = ask, sent_s
        self._pieces: list[Piece] = []
        self._usage: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self._error: str | None = None
        self._text: list[str] = []

    def event(self, at_s: float, data: str) -> None:
        """The data of one server-sent event."""
        if data == "[DONE]" or self._error is not None:
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self._error = f"broken stream: an event is no JSON object: {data[:80]}"
            return
        if event.get("error"):
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            self._error = f"error in the stream: {message}"
            return
        usage = event.get("usage")
        self._usage = usage if isinstance(usage, dict) else self._usage
        self._metrics |= _spoken(event.get("metrics"))
        for choice in event.get("choices") or ():
            self._choice(at_s, choice, usage)
            self._metrics |= _spoken(choice.get("metrics"))

    def _choice(self, at_s: float, choice: dict[str, Any], usage: Any) -> None:
        delta = choice.get("delta") or choice
        text = "".join(delta[name] for name in TEXTS if isinstance(delta.get(name), str))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if not text and (not choice.get("finish_reason") or not self._pieces):
            return
        so_far = usage.get("completion_tokens") if isinstance(usage, dict) else None
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
        return self._made(ended_s, None)

    def failed(self, ended_s: float, kind: str, said: str) -> Answer:
        """It broke off."""
        return self._made(ended_s, f"{kind}: {said}")

    def _made(self, ended_s: float, error: str | None) -> Answer:
        tokens = self._usage.get("completion_tokens")
        pieces = _told(self._pieces, tokens)
        return Answer(
            id=self._ask.id,
            set=self._ask.set,
            sent_s=self._sent_s,
            ended_s=ended_s,
            pieces=pieces,
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=(self._usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            completion_tokens=tokens,
            finish_reason=self._finish_reason,
            speculation=_speculation(self._usage, self._metrics),
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


def _spoken(metrics: Any) -> dict[str, Any]:
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return found if isinstance(found, dict) else {}


def _speculation(usage: dict[str, Any], metrics: dict[str, Any]) -> Speculation | None:
    """From what one request tells; None where it tells nothing."""
    tokens = usage.get("completion_tokens") or 0
    ours = usage.get("speculation")
    if isinstance(ours, dict) and ours.get("cycles"):
        return Speculation(
            emitted=round(ours["accept_length"] * ours["cycles"]),
            cycles=ours["cycles"],
            drafted=ours["drafted"],
            accepted=ours["accepted"],
        )
    steps = metrics.get("num_spec_steps") or metrics.get("num_verify_steps")
    if steps:
        accepted = metrics.get("num_accepted_draft_tokens", metrics.get("num_accepted_tokens", 0))
        return Speculation(
            emitted=steps + accepted, cycles=steps, drafted=metrics.get("num_draft_tokens"), accepted=accepted
        )
    details = usage.get("completion_tokens_details") or {}
    accepted, rejected = details.get("accepted_prediction_tokens"), details.get("rejected_prediction_tokens")
    if tokens > 1 and accepted is not None and rejected is not None and accepted + rejected:
        # Each cycle brings its accepted drafts and one token more; the first token of an answer is prefill's.
        emitted = tokens - 1
        return Speculation(
            emitted=emitted, cycles=max(1, emitted - accepted), drafted=accepted + rejected, accepted=accepted
        )
    return None
