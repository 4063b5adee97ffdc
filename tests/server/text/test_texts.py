"""Which texts are encoded at once and which in a thread."""

from __future__ import annotations

import asyncio
from threading import current_thread, main_thread
from typing import Any

import pytest

from outpace.models.text.tokenizer import Tokenizer
from outpace.server.text import texts as module
from outpace.server.text.texts import BRIEF_S, SHORT, TO_TRUST, Texts


class Watched:
    """A tokenizer that tells where it was asked, and takes so many seconds of its own clock."""

    def __init__(self) -> None:
        self.seconds = self.now = 0.0
        self.at_once: list[bool] = []

    def _work(self) -> list[int]:
        self.at_once.append(current_thread() is main_thread())
        self.now += self.seconds
        return [1]

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        return self._work()

    def render_chat(self, messages: Any, tools: Any) -> str:
        return ""


def chat(*contents: Any, **options: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} | options for content in contents]


@pytest.mark.parametrize(
    ("messages", "tools", "at_once"),
    [
        (chat("a" * 100), None, True),
        (chat("a" * SHORT), None, False),
        (chat(*["a"] * SHORT), None, False),
        (chat([{"type": "text", "text": "a"}]), None, False),
        (chat(None), None, False),
        (chat("a", tool_calls=[]), None, False),
        (chat("a"), [{"name": "f"}], False),
    ],
)
def test_short_conversations_are_encoded_at_once(messages: Any, tools: Any, at_once: bool) -> None:
    watched = Watched()
    asyncio.run(Texts(watched).chat_ids(messages, 100, tools))  # type: ignore[arg-type]
    assert watched.at_once == [at_once]


def test_what_takes_long_though_it_is_short_goes_to_threads_until_it_was_brief_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        for seconds in (0.0, 2 * BRIEF_S, *[0.0] * (TO_TRUST - 1), 2 * BRIEF_S, *[0.0] * (TO_TRUST + 1)):
            watched.seconds = seconds
            await texts.prompt_ids("a", 100)

    watched = Watched()
    monkeypatch.setattr(module, "thread_time", lambda: watched.now)
    texts = Texts(watched)  # type: ignore[arg-type]
    asyncio.run(work())
    assert watched.at_once == [True, True, *[False] * 2 * TO_TRUST, True]


def test_a_real_template_is_brief(model: Any) -> None:
    """The briefest of several: whatever else the machine does only adds."""
    tokenizer = Tokenizer.from_directory(model)

    def is_brief() -> bool:
        texts = Texts(tokenizer)
        asyncio.run(texts.chat_ids(chat("Hello!"), 100))
        return not texts._to_trust

    assert any(is_brief() for _ in range(50))
