"""Engine pieces as parts of an answer, as the client asked for them: echoed prompts, log-probabilities, tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outpace.server.calling import Calling
from outpace.server.formats import Written
from outpace.server.jobs import Job
from outpace.server.spelling import Spell, entries
from outpace.server.wire import Piece


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads the pieces of one request's answers."""

    spell: Spell
    echoed: tuple[str, ...] | None
    """The prompt's text before each answer; None echoes nothing."""
    tells_prompt: bool
    """The prompt's log-probabilities were asked for by themselves, not for the echo alone."""
    calling: Callable[[], Calling] | None = None
    """Makes what reads one answer's tool calls; None where there can be none."""
    _offsets: dict[int, int] = field(default_factory=dict)
    """By answer, once its first piece came."""
    _callings: dict[int, Calling] = field(default_factory=dict)
    """Likewise."""

    def read(self, job: Job, piece: Piece) -> Written:
        """The part of an answer that a piece is."""
        part = Written(piece.text, piece.finish_reason, offset=self._offsets.get(job.place, 0))
        if piece.logprobs is not None:
            part.logprobs = entries(self.spell, piece.token_ids, piece.logprobs)
        if piece.prompt_logprobs is not None and self.tells_prompt:
            part.prompt_logprobs = entries(self.spell, job.prompt_ids, piece.prompt_logprobs)
        if self.echoed is not None and job.place not in self._offsets:
            part.text = self.echoed[job.place] + part.text
            if part.logprobs is not None and piece.prompt_logprobs is not None:
                part.logprobs = entries(self.spell, job.prompt_ids, piece.prompt_logprobs) + part.logprobs
        if self.calling is not None:
            calling = self._callings.setdefault(job.place, self.calling())
            part.text, part.calls, part.finish_reason = calling.read(part.text, part.finish_reason)
        self._offsets[job.place] = part.end
        return part
