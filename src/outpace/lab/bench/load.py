"""Drives a server: so many requests at a time, or so many a second, and watches that the client itself keeps up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outpace.lab.bench.answer import Answer
from outpace.lab.bench.asks import Ask
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.settings import Asking

BEAT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """Requests of one stretch of time."""

    answers: tuple[Answer, ...]
    """In the order that they were asked."""
    began_s: float
    ended_s: float
    client_lag_s: tuple[float, ...]
    """How late the client's own loop was, every 20 ms: what it was late by may be in the times."""
    cut_short: bool = False
    """It was cancelled; requests that were under way are not among the answers."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


async def drive(
    endpoint: Endpoint,
    asks: Sequence[Ask],
    asking: Asking,
    model: str,
    *,
    concurrency: int = 1,
    request_rate: float | None = None,
    on_done: Callable[[Answer], None] = lambda answer: None,
    may_be_cut: bool = False,
) -> Driven:
    """Asks everything once.

    Args:
        concurrency: requests that run at a time.
        request_rate: requests a second at random times instead, however many run then.
        on_done: told of each answer as it ends.
        may_be_cut: being cancelled ends it with the answers so far, if there are any.
    """
    clock = asyncio.get_running_loop().time
    answers: list[Answer | None] = [None] * len(asks)

    async def one(number: int) -> None:
        answers[number] = answer = await endpoint.ask(asks[number], asking, model, number)
        on_done(answer)

    lags: list[float] = []
    cut_short = False
    heart = asyncio.create_task(_beat(lags))
    began = clock()
    try:
        if request_rate is None:
            numbers = iter(range(len(asks)))
            await _all(_worker(numbers, one) for _ in range(concurrency))
        else:
            draw, at, arrivals = random.Random(asking.seed), began, []
            for number in range(len(asks)):
                arrivals.append(_later(at, number, one))
                at += draw.expovariate(request_rate)
            await _all(arrivals)
    except asyncio.CancelledError:
        if not may_be_cut or not any(answers):
            raise
        cut_short = True
        go_on()
    finally:
        heart.cancel()
        with suppress(asyncio.CancelledError):
            await heart
    done = tuple(answer for answer in answers if answer is not None)
    return Driven(
        answers=done,
        began_s=began,
        ended_s=max((a.ended_s for a in done), default=clock()),
        client_lag_s=tuple(lags),
        cut_short=cut_short,
    )


def go_on() -> None:
    """After a cancellation that was caught: the task has taken note, and may wait for things again."""
    task = asyncio.current_task()
    assert task is not None, "only tasks are cancelled"
    task.uncancel()


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)


async def _worker(numbers: Iterator[int], one: Callable[[int], Awaitable[None]]) -> None:
    for number in numbers:
        await one(number)


async def _later(at_s: float, number: int, one: Callable[[int], Awaitable[None]]) -> None:
    await asyncio.sleep(at_s - asyncio.get_running_loop().time())
    await one(number)


async def _beat(lags: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + BEAT_S
        await asyncio.sleep(BEAT_S)
        lags.append(clock() - due)
