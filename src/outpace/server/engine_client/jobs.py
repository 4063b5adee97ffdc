"""Answers under way: one `Job` is one answer, a `Submission` is the answers of one HTTP request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal

from outpace.config import SamplingParams
from outpace.errors import EngineError, OutpaceError
from outpace.server.wire import Piece, Tally

MAX_UNREAD = 1 << 16
"""Pieces of a request's answers that wait for their client."""


class QueueFull(OutpaceError):
    """Too many answers wait; `retry_after` seconds may help."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(EngineError):
    """The engine died under a request, or cannot take one now. `code` is for machines."""

    def __init__(
        self, message: str, code: Literal["engine_died", "engine_down", "draining", "grammar_untried"]
    ) -> None:
        super().__init__(message)
        self.code = code


class BrokenRequest(EngineError):
    """The engine raised on this request, and goes on without it."""


class TooSlow(OutpaceError):
    """A client does not read what its answer has come to."""


@dataclass(slots=True, eq=False)
class Job:
    """One answer, from its submission to its end."""

    id: int
    place: int
    """Which answer of its submission it is."""
    prompt_ids: list[int]
    """Once it was sent, only where log-probabilities of the prompt are told."""
    params: SamplingParams
    put: Callable[[Job, Event], None]
    kept: tuple[str, ...] = ()
    """Special tokens that the answer's text shows."""
    state: Literal["waiting", "sent", "done"] = "waiting"
    """A job that was sent may have been begun."""
    num_tokens: int = 0
    tally: Tally = field(default_factory=Tally)
    since: float = field(default_factory=monotonic)
    """When it was submitted, then when it was sent."""

    def let_go(self) -> None:
        """It was sent, and is never sent again: what its engine alone needs is not kept beside its answer."""
        if self.params.grammar is not None:
            self.params = replace(self.params, grammar=None)
        if self.params.prompt_logprobs is None:
            self.prompt_ids = []


@dataclass(frozen=True, slots=True)
class Begun:
    """The engine took the request: what was asked is sound."""


Event = Begun | Piece | OutpaceError | TimeoutError
Wanted = tuple[list[int], SamplingParams]
"""Prompt ids, and parameters with a seed."""
Abort = Callable[[Job], None]


class Submission:
    """The answers of one request: iterating gives what came since, a list of (which answer, piece) that is not empty.

    Who reads slowly gets long lists, so that the cost of telling falls as the load rises. Closing aborts what is not
    finished.

    Args:
        wanted: what is asked.
        ids: a number for each.
        deadline: by the event loop's clock; past it, waiting raises TimeoutError.
        abort: ends an answer that is not finished.
        kept: special tokens that the answers' texts show.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        ids: Sequence[int],
        deadline: float,
        abort: Abort,
        kept: tuple[str, ...] = (),
    ) -> None:
        self._events: deque[tuple[int, Event]] = deque()
        self._came = asyncio.Event()
        self._abort = abort
        self.deadline = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)
        self.jobs = [
            Job(id=i, place=place, prompt_ids=prompt_ids, params=params, put=self._put, kept=kept)
            for place, (i, (prompt_ids, params)) in enumerate(zip(ids, wanted, strict=True))
        ]

    def _put(self, job: Job, event: Event) -> None:
        if isinstance(event, Piece) and len(self._events) >= MAX_UNREAD:
            event = TooSlow(
                f"the client left {MAX_UNREAD} pieces of its answers unread, so they were ended: read faster"
            )
            self.close()
        self._events.append((job.place, event))
        self._came.set()

    def _expire(self) -> None:
        if not self.over:
            self._put(self.jobs[0], TimeoutError())

    @property
    def over(self) -> bool:
        """No answer is under way any more."""
        return all(job.state == "done" for job in self.jobs)

    def close(self) -> None:
        """Aborts what is not finished; what waits before what runs, whose place it would take."""
        self._timer.cancel()
        for job in reversed(self.jobs):
            self._abort(job)

    async def begun(self) -> None:
        """Waits until the engine took the first answer: what was asked is sound, unless prompts differ.

        Raises:
            RequestError, Unavailable, BrokenRequest, TimeoutError: there will be no answer.
        """
        await self._wait()
        _, event = self._take()
        assert isinstance(event, Begun), "an engine accepts before it answers"

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> list[tuple[int, Piece]]:
        pieces: list[tuple[int, Piece]] = []
        while not pieces:
            if self.over and not self._events:
                raise StopAsyncIteration
            await self._wait()
            # What came before an error is told before it.
            while self._events and not (pieces and isinstance(self._events[0][1], Exception)):
                place, event = self._take()
                if isinstance(event, Piece):
                    pieces.append((place, event))
        return pieces

    async def _wait(self) -> None:
        """Until there is an event."""
        if not self._events:
            self._came.clear()
            await self._came.wait()

    def _take(self) -> tuple[int, Begun | Piece]:
        place, event = self._events.popleft()
        if isinstance(event, Exception):
            raise event
        return place, event
