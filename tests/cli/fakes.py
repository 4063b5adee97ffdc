"""A stand-in for `LLM` at its public side: it answers from a script, so the commands can be tested without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import outpace
from outpace import Chunk, RequestStats, SamplingParams


class FakeTokenizer:
    """One token a character; the chat template is a line for each message."""

    chat_template: str | None = "template"

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages))


@dataclass
class FakeLLM:
    """Streams `answer` in pieces of two characters, and notes what it was asked."""

    answer: str = "Hello there."
    error: Exception | None = None
    tokenizer: Any = field(default_factory=FakeTokenizer)
    made_with: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    config: Any = field(default_factory=lambda: SimpleNamespace(k=4))
    target: Any = field(default_factory=lambda: SimpleNamespace(source=SimpleNamespace(name="fake")))

    def __call__(self, model: str, **settings: Any) -> FakeLLM:
        self.made_with = {"model": model, **settings}
        return self

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        self.asked.append((list(prompt), params))
        if self.error is not None:
            raise self.error
        pieces = [self.answer[i : i + 2] for i in range(0, len(self.answer), 2)]
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            yield Chunk(
                text=piece,
                token_ids=tuple(map(ord, piece)),
                finish_reason="stop" if last else None,
                stopped_by="#" if last else None,
                stats=stats(index),
            )

    def encode(self, prompt: str | Sequence[dict[str, str]]) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else self.tokenizer.encode_chat(prompt)

    def describe(self) -> dict[str, Any]:
        return {"model": "fake"}


def stats(cycles: int) -> RequestStats:
    """Two tokens a cycle."""
    return RequestStats(
        cycles=cycles,
        emitted=2 * cycles,
        drafted_at=(cycles,) * 4,
        accepted_at=(cycles, 0, 0, 0),
        reused=0,
    )


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """What the commands take for `LLM`."""
    fake = FakeLLM()
    monkeypatch.setattr(outpace, "LLM", fake)
    return fake


def said(prompt_ids: Sequence[int]) -> str:
    """The text that the fake tokenizer was given."""
    return "".join(map(chr, prompt_ids))
