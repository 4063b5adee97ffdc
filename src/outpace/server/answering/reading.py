"""Engine pieces as parts of an answer, as the client asked for them: echoed prompts, log-probabilities, tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outpace.server.answering.calling import Calling
from outpace.server.answering.formats import Written
from outpace.server.engine_client.jobs import Job
from outpace.server.text.spelling import Entry, Spell, entries
from outpace.server.wire import Piece
from outpace.types import TokenLogprobs

SPELLED_AT_ONCE = 16
"""Tokens: those of a cycle."""


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads the pieces of one request's answers."""

    spell: Spell
    columnar: bool
    """How log-probabilities are told."""
    echoed: tuple[str, ...] | None
    """The prompt's text before each answer; None echoes nothing."""
    tells_prompt: bool
    """The prompt's log-probabilities were asked for by themselves, not for the echo alone."""
    calling: Callable[[], Calling] | None = None
    """Makes what reads one answer's tool calls; None where there can be none."""
    _offsets: dict[int, int] = field(default_factory=dict)
    """By answer, once its first piece came."""
    _num_prompt: dict[int, int] = field(default_factory=dict)
    """By answer, of how many tokens of its prompt log-probabilities came."""
    _callings: dict[int, Calling] = field(default_factory=dict)
    """By answer."""

    async def read(self, job: Job, piece: Piece) -> Written:
        """The part of an answer that a piece is."""
        part = Written(piece.text, piece.finish_reason, offset=self._offsets.get(job.place, 0))
        if self.echoed is not None and job.place not in self._offsets:
            part.text = self.echoed[job.place] + part.text
        if piece.logprobs is not None or piece.prompt_logprobs is not None:
            await self._spell(job, piece, part)
        if self.calling is not None:
            calling = self._callings.setdefault(job.place, self.calling())
            part.text, part.calls, part.finish_reason = calling.read(part.text, part.finish_reason)
        self._offsets[job.place] = part.end
        return part

    async def _spell(self, job: Job, piece: Piece, part: Written) -> None:
        if piece.logprobs is not None:
            part.logprobs = await self._entries(piece.token_ids, piece.logprobs, columnar=self.columnar)
        if piece.prompt_logprobs is None:
            return
        begin = self._num_prompt.get(job.place, 0)
        end = self._num_prompt[job.place] = begin + len(piece.prompt_logprobs)
        prompt_ids = job.prompt_ids[begin:end]
        if self.tells_prompt:
            part.prompt_logprobs = await self._entries(prompt_ids, piece.prompt_logprobs, columnar=False)
        if self.echoed is not None and job.params.logprobs is not None:
            echoed = await self._entries(prompt_ids, piece.prompt_logprobs, columnar=self.columnar)
            part.logprobs = echoed + (part.logprobs or [])

    async def _entries(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], *, columnar: bool
    ) -> list[Entry]:
        """Many are spelled in a thread: meanwhile other answers are told."""
        if len(token_ids) <= SPELLED_AT_ONCE:
            return entries(self.spell, token_ids, logprobs, columnar=columnar)
        return await asyncio.to_thread(entries, self.spell, token_ids, logprobs, columnar=columnar)
