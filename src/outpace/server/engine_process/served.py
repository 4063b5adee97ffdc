"""One request in the engine process: what the engine has written of it, and what the other side has been told.

A request may have to be done over: from its seed it comes to the same answer, of which only what is new is told.
"""

from __future__ import annotations

from time import monotonic

from outpace.engine.live import LiveAnswer
from outpace.engine.llm import LLM
from outpace.engine.results import Chunk
from outpace.errors import EngineError
from outpace.server.wire import Piece, Submit, Tally
from outpace.types import TokenLogprobs
from outpace.wording import count_of

PROMPT_PART = 256
"""Tokens of a prompt whose log-probabilities are one message."""

Logprobs = tuple[TokenLogprobs | None, ...]


class Served:
    """A request in the engine, or one that stands aside.

    Raises:
        RequestError: it cannot be served.
    """

    def __init__(self, llm: LLM, submit: Submit) -> None:
        self.submit = submit
        self._begun = monotonic()
        self._llm = llm
        self._told: list[int] = []
        self._num_characters = 0
        """Token ids and characters that the other side has."""
        self.begin()

    def begin(self) -> None:
        """Asks the engine, for the first time or once more."""
        llm, submit = self._llm, self.submit
        self._live = LiveAnswer(llm.engine, llm.tokenizer, submit.prompt_ids, submit.params, submit.kept)
        self._live.begin()
        self._num_read, self._skip_characters = 0, self._num_characters

    def end(self) -> None:
        """Frees what it holds in the engine."""
        self._live.end()

    def take(self) -> list[Piece]:
        """What is new to the other side.

        Raises:
            EngineError: done over, the answer is not the one that was told.
        """
        chunk = self._live.take()
        if chunk is None:
            return []
        told_before = bool(self._told)
        num_known = self._check_again(chunk)
        token_ids = chunk.token_ids[num_known:]
        text = chunk.text[self._skip_characters :]
        self._skip_characters -= len(chunk.text) - len(text)
        if not (token_ids or text or chunk.finish_reason):
            return []
        self._told += token_ids
        self._num_characters += len(text)
        *parts, last = [None] if told_before else _parts(chunk.prompt_logprobs)
        tally, request_id = _tally(chunk), self.submit.id
        first_s = None if told_before else monotonic() - self._begun
        return [_of_prompt(request_id, tally, part, first_s) for part in parts] + [
            Piece(
                id=request_id,
                text=text,
                token_ids=token_ids,
                finish_reason=chunk.finish_reason,
                tally=tally,
                logprobs=None if chunk.logprobs is None else chunk.logprobs[num_known:],
                prompt_logprobs=last,
                first_s=first_s,
            )
        ]

    def _check_again(self, chunk: Chunk) -> int:
        """How many of a chunk's tokens were told before this answer was done over."""
        known = self._told[self._num_read : self._num_read + len(chunk.token_ids)]
        for place, (told, found) in enumerate(zip(known, chunk.token_ids, strict=False), start=self._num_read + 1):
            if told != found:
                raise EngineError(
                    f"after another request made the engine raise, this answer was done over, and its token {place} is "
                    f"now {found} where {told} was told already: send the request again"
                )
        self._num_read += len(chunk.token_ids)
        if chunk.finish_reason is not None and self._num_read < len(self._told):
            raise EngineError(
                "after another request made the engine raise, this answer was done over, and it now ends after "
                f"{count_of(self._num_read, 'token')} where {len(self._told)} were told already: send the request again"
            )
        return len(known)


def _parts(listed: Logprobs | None) -> list[Logprobs | None]:
    """A prompt's log-probabilities, in messages that are quickly read."""
    if listed is None:
        return [None]
    return [listed[at : at + PROMPT_PART] for at in range(0, len(listed), PROMPT_PART)]


def _of_prompt(request_id: int, tally: Tally, part: Logprobs | None, first_s: float | None) -> Piece:
    return Piece(
        id=request_id,
        text="",
        token_ids=(),
        finish_reason=None,
        tally=tally,
        prompt_logprobs=part,
        first_s=first_s,
    )


def _tally(chunk: Chunk) -> Tally:
    stats = chunk.stats
    return Tally(
        cycles=stats.cycles,
        emitted=stats.emitted,
        drafted_at=stats.drafted_at,
        accepted_at=stats.accepted_at,
        reused=stats.reused,
        simulated=stats.simulated,
        lossy=stats.lossy,
    )
