"""What answers look like: OpenAI's objects for chats and for completions, whole and in chunks."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol

import msgspec

from outpace.server.answering.calling import CallPart
from outpace.server.engine_client.jobs import Job
from outpace.server.engine_client.totals import by_place
from outpace.server.text.spelling import Entry, columns
from outpace.server.wire import Piece, Tally
from outpace.types import accept_length

Choice = dict[str, Any]


@dataclass(slots=True)
class Written:
    """A part of an answer, or all of it."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: list[Entry] | None = None
    prompt_logprobs: list[Entry] | None = None
    offset: int = 0
    """Characters of all tokens before this part, as far as log-probabilities are told."""
    calls: list[CallPart] = field(default_factory=list)

    def add(self, part: Written) -> None:
        """What comes behind it."""
        self.text += part.text
        self.finish_reason = part.finish_reason
        if part.logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += part.logprobs
        if part.prompt_logprobs is not None:
            self.prompt_logprobs = [] if self.prompt_logprobs is None else self.prompt_logprobs
            self.prompt_logprobs += part.prompt_logprobs
        for call in part.calls:
            if call.index == len(self.calls):
                self.calls.append(call)
            else:
                self.calls[call.index].arguments += call.arguments

    @property
    def told(self) -> bool:
        """There is something for the client, beside how the answer ended."""
        return bool(self.text or self.calls or self.logprobs or self.prompt_logprobs)

    @property
    def end(self) -> int:
        """`offset` of the part behind it."""
        return self.offset + sum(entry.num_characters for entry in self.logprobs or ())


class Format(Protocol):
    """How the choices of one kind of completion are written."""

    prefix: str
    """Of ids."""
    whole: str
    chunk: str
    """Names of the objects."""
    columnar: bool
    """Log-probabilities are told by column."""

    def opening(self, index: int) -> list[Choice]:
        """Before anything is said."""
        ...

    def said(self, index: int, part: Written) -> Choice:
        """More of an answer; how it ended is told by `closing`."""
        ...

    def closing(self, index: int, finish_reason: str) -> Choice:
        """After everything is said."""
        ...

    def choice(self, index: int, written: Written) -> Choice:
        """A choice as a whole."""
        ...


class ChatFormat:
    prefix, whole, chunk, columnar = "chatcmpl", "chat.completion", "chat.completion.chunk", False

    def opening(self, index: int) -> list[Choice]:
        return [self._delta(index, {"role": "assistant", "content": ""}, None, Written())]

    def said(self, index: int, part: Written) -> Choice:
        delta: Choice = {"content": part.text} if part.text or not part.calls else {}
        if part.calls:
            delta["tool_calls"] = [_call_delta(call) for call in part.calls]
        return self._delta(index, delta, None, part)

    def closing(self, index: int, finish_reason: str) -> Choice:
        return self._delta(index, {}, finish_reason, Written())

    def choice(self, index: int, written: Written) -> Choice:
        message: Choice = {"role": "assistant", "content": written.text, "refusal": None}
        if written.calls:
            message["content"] = written.text or None
            message["tool_calls"] = [_call(call) for call in written.calls]
        return {"index": index, "message": message, "finish_reason": written.finish_reason, **self._logprobs(written)}

    def _delta(self, index: int, delta: dict[str, Any], finish_reason: str | None, part: Written) -> Choice:
        return {"index": index, "delta": delta, "finish_reason": finish_reason, **self._logprobs(part)}

    def _logprobs(self, part: Written) -> Choice:
        told = None if part.logprobs is None else {"content": _told(part.logprobs), "refusal": None}
        return {"logprobs": told} | _prompt_logprobs(part)


class CompletionFormat:
    prefix, whole, chunk, columnar = "cmpl", "text_completion", "text_completion", True

    def opening(self, index: int) -> list[Choice]:
        return []

    def said(self, index: int, part: Written) -> Choice:
        return self.choice(index, part) | {"finish_reason": None}

    def closing(self, index: int, finish_reason: str) -> Choice:
        return self.choice(index, Written("", finish_reason))

    def choice(self, index: int, written: Written) -> Choice:
        told = None if written.logprobs is None else columns(written.logprobs, written.offset)
        choice = {"index": index, "text": written.text, "finish_reason": written.finish_reason, "logprobs": told}
        return choice | _prompt_logprobs(written)


def _call(call: CallPart) -> Choice:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_delta(call: CallPart) -> Choice:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_call(call)}


def _prompt_logprobs(part: Written) -> Choice:
    return {} if part.prompt_logprobs is None else {"prompt_logprobs": _told(part.prompt_logprobs)}


def _told(listed: Sequence[Entry]) -> list[msgspec.Raw]:
    return [entry.told for entry in listed]


@dataclass(slots=True)
class Envelope:
    """What is around the choices of one request."""

    format: Format
    model: str
    created: int = field(default_factory=lambda: int(time()))
    id: str = ""

    def __post_init__(self) -> None:
        self.id = f"{self.format.prefix}-{secrets.token_hex(12)}"

    def whole(self, answers: Sequence[Written], usage: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self.format.choice(index, written) for index, written in enumerate(answers)]
        return self._around(self.format.whole, choices) | {"usage": usage}

    def chunk(self, choices: list[Choice]) -> dict[str, Any]:
        return self._around(self.format.chunk, choices)

    def _around(self, kind: str, choices: list[Choice]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(slots=True)
class Counted:
    """One answer as far as it was told."""

    num_tokens: int = 0
    tally: Tally = field(default_factory=Tally)

    def add(self, piece: Piece) -> None:
        """What is told now."""
        self.num_tokens += len(piece.token_ids)
        self.tally = piece.tally


def usage(num_prompts: Sequence[int], answers: Sequence[Counted | Job]) -> dict[str, Any]:
    """Tokens of a request, counted as tokens, and what speculation came to in it.

    Args:
        num_prompts: tokens of each prompt, which count once however many choices it has.
        answers: its answers, prompt by prompt: as far as they were told, or as far as the engine has come.
    """
    num_prompt = sum(num_prompts)
    num_written = sum(answer.num_tokens for answer in answers)
    tallies = [answer.tally for answer in answers]
    num_choices = len(tallies) // len(num_prompts)
    cycles = sum(tally.cycles for tally in tallies)
    emitted = sum(tally.emitted for tally in tallies)
    drafted_at = by_place(tally.drafted_at for tally in tallies)
    accepted_at = by_place(tally.accepted_at for tally in tallies)
    length = accept_length(cycles, emitted, drafted_at)
    speculation: dict[str, Any] = {
        "accept_length": None if length is None else round(length, 4),
        "cycles": cycles,
        "emitted": emitted,
        "drafted": sum(drafted_at),
        "accepted": sum(accepted_at),
        "drafted_at": drafted_at,
        "accepted_at": accepted_at,
    }
    if any(tally.simulated for tally in tallies):
        speculation["simulated"] = True  # such an answer is worth nothing but its speed, and says so
    if any(tally.lossy for tally in tallies):
        speculation["lossy"] = True  # it need not be plain decoding's
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_written,
        "total_tokens": num_prompt + num_written,
        "prompt_tokens_details": {"cached_tokens": sum(tally.reused for tally in tallies[::num_choices])},
        "speculation": speculation,
    }
