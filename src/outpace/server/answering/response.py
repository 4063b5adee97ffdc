"""Answers a request: whole, or as server-sent events while it is written. A client that goes away aborts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.errors import OutpaceError, RequestError
from outpace.server.answering.formats import Counted, Envelope, Written, usage
from outpace.server.answering.reading import Reader
from outpace.server.engine_client.jobs import Job, Submission
from outpace.server.http import api_errors
from outpace.server.http.api_errors import ApiError
from outpace.server.http.observing import facts_of
from outpace.server.wire import Piece

CLIENT_GONE = 499
"""What logs say of a request whose client went away; nobody reads it."""
SLOW_READER = 10.0
"""Seconds that a client may take to read the end of a stream after the request's time is over."""
MAX_LOGPROBS = 1 << 21
"""Of an answer that is told as a whole, alternatives included: some 150 MB of JSON."""
DONE = b"data: [DONE]\n\n"
STREAMED = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies would hold tokens back
)
"""Headers of a stream."""


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """A request on its way to its answer."""

    request: Request
    envelope: Envelope
    submission: Submission
    num_prompts: tuple[int, ...]
    """Tokens of each prompt."""
    include_usage: bool
    continuous_usage: bool
    reader: Reader
    explain: Callable[[RequestError], ApiError] = api_errors.of
    """Names the field of the request that is to blame; it does not keep the request."""

    def usage(self) -> dict[str, Any]:
        return usage(self.num_prompts, self.submission.jobs)

    async def response(self, *, stream: bool) -> ASGIApp:
        """One that streams begins when the engine took the request: what it refuses is no 200.

        Raises:
            ApiError, OutpaceError, TimeoutError: there is no answer.
        """
        try:
            if not stream:
                return whole(await self._whole())
            await self.submission.begun()
        except RequestError as error:
            raise self.explain(error) from error
        return EventStream(self.events())

    def note_left(self) -> None:
        """The client did not wait for the end."""
        facts_of(self.request.scope).setdefault("error", "the client went away")

    def close(self) -> None:
        """Aborts what is not finished, and notes what the request came to."""
        self.submission.close()
        facts_of(self.request.scope).update(self.usage())

    async def _whole(self) -> dict[str, Any]:
        answers, num_logprobs = [Written() for _ in self.submission.jobs], 0
        async for pieces in self.submission:
            self._note_first(*pieces[0])
            for place, piece in pieces:
                num_logprobs += _num_logprobs(self.submission.jobs[place], piece)
                if num_logprobs > MAX_LOGPROBS:
                    raise RequestError(
                        f"logprobs: an answer that is told as a whole may have {MAX_LOGPROBS} log-probabilities over "
                        "all its choices, and this one has more: stream it, or lower logprobs, n or max_tokens"
                    )
                answers[place].add(await self.reader.read(self.submission.jobs[place], piece))
        return self.envelope.whole(answers, self.usage())

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a stream, in OpenAI's order; an error that comes too late for a status is the last event."""
        opening = [
            choice for index in range(len(self.submission.jobs)) for choice in self.envelope.format.opening(index)
        ]
        told = [Counted() for _ in self.submission.jobs]
        if opening:
            yield b"".join(self._event([choice], told) for choice in opening)
        try:
            async for pieces in self.submission:
                self._note_first(*pieces[0])
                events: list[bytes] = []
                for place, piece in pieces:
                    told[place].add(piece)
                    events += [self._event([choice], told) for choice in await self._choices(place, piece)]
                if events:
                    yield b"".join(events)
        except (OutpaceError, TimeoutError) as error:
            refusal = self.explain(error) if isinstance(error, RequestError) else api_errors.of(error)
            facts_of(self.request.scope)["error"] = str(refusal)
            yield _data(refusal.body())
            return
        yield (_data(self.envelope.chunk([]) | {"usage": self.usage()}) if self.include_usage else b"") + DONE

    async def _choices(self, place: int, piece: Piece) -> list[dict[str, Any]]:
        form = self.envelope.format
        part = await self.reader.read(self.submission.jobs[place], piece)
        said = [form.said(place, part)] if part.told else []
        return said if part.finish_reason is None else [*said, form.closing(place, part.finish_reason)]

    def _event(self, choices: list[dict[str, Any]], told: Sequence[Counted]) -> bytes:
        """A chunk; `told` is what was told of each answer, this chunk's part among it. The engine may be further."""
        chunk = self.envelope.chunk(choices)
        if self.continuous_usage:
            chunk["usage"] = usage(self.num_prompts, told)
        elif self.include_usage:
            chunk["usage"] = None
        return _data(chunk)

    def _note_first(self, place: int, piece: Piece) -> None:
        facts_of(self.request.scope).note_first_token(self.submission.jobs[place].since, piece.first_s)


class Awaited(Response):
    """A response that is waited for when all that made the request of its body is gone: answers may take minutes.

    It is given up when its client goes away or reads too slowly.
    """

    def __init__(self, answering: Answering, *, stream: bool) -> None:
        super().__init__()
        self._answering, self._stream = answering, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        facts, answering = facts_of(scope), self._answering
        begun = False

        async def tell() -> None:
            nonlocal begun
            response = await answering.response(stream=self._stream)
            begun = True
            await response(scope, receive, send)

        try:
            async with asyncio.timeout_at(answering.submission.deadline + SLOW_READER):
                await unless_gone(receive, tell())
        except ClientGone:
            if not begun:
                answering.note_left()
                await Response(status_code=CLIENT_GONE)(scope, receive, send)
        except TimeoutError:
            if not begun:
                raise
            facts["error"] = "the client read too slowly"
        finally:
            if begun and not answering.submission.over:
                answering.note_left()
            answering.close()


class EventStream:
    """Server-sent events, as they come."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAMED})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does `work`, which is cancelled if the client goes away first.

    Raises:
        ClientGone: it did.
    """
    task, watch = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        task.result()
    finally:
        task.cancel()
        watch.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _num_logprobs(job: Job, piece: Piece) -> int:
    own = len(piece.logprobs or ()) * (1 + (job.params.logprobs or 0))
    return own + len(piece.prompt_logprobs or ()) * (1 + (job.params.prompt_logprobs or 0))


def whole(body: dict[str, Any]) -> Response:
    """An answer that may be long; FastAPI's own way takes seconds for it."""
    return Response(msgspec.json.encode(body), media_type="application/json")


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
