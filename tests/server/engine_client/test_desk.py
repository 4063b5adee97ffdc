"""What the engine is sent of answers that are queued, refused and given up."""

from __future__ import annotations

import asyncio

import pytest

from outpace import EngineError, RequestError, SamplingParams
from outpace.server.engine_client import desk as module
from outpace.server.engine_client.desk import Desk
from outpace.server.engine_client.jobs import Unavailable
from outpace.server.http import api_errors
from outpace.server.wire import Aborted, Accepted, Submit, ToEngine, Untried, pack

WANTED = ([1], SamplingParams(seed=1))


def desk_of(slots: int) -> tuple[Desk, list[ToEngine]]:
    """A desk whose engine takes so many at once, and what that was sent."""
    desk, sent = Desk(queue_limit=100), list[ToEngine]()

    def send(message: ToEngine) -> None:
        pack(message)
        sent.append(message)

    desk.open(slots, send)
    return desk, sent


def num_submitted(sent: list[ToEngine]) -> int:
    return sum(isinstance(message, Submit) for message in sent)


def test_a_request_that_is_given_up_is_sent_no_further() -> None:
    async def work() -> None:
        desk, sent = desk_of(slots=2)
        submission = desk.submit([WANTED] * 20, 60.0)
        submission.close()
        assert num_submitted(sent) == 2 and desk.num_waiting == 0
        for request_id in (0, 1):
            assert desk.num_running == 2 - request_id
            desk.hear(Aborted(id=request_id))
        assert desk.num_running == 0

    asyncio.run(work())


def test_a_request_counts_as_begun_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending wakes the engine, which may take this process's core for a whole step: that is no time before it."""
    monkeypatch.setattr(module, "monotonic", lambda: 7.0)

    async def work() -> None:
        seen: list[float] = []
        desk = Desk(queue_limit=9)
        submission = desk.submit([WANTED], 60.0)
        (job,) = submission.jobs
        desk.open(1, lambda message: seen.append(job.since))
        assert seen == [7.0]
        submission.close()

    asyncio.run(work())


def test_who_comes_and_goes_before_an_engine_that_hears_nothing_is_not_sent() -> None:
    async def work() -> None:
        desk, sent = desk_of(slots=2)
        for _ in range(20):
            desk.submit([WANTED], 60.0).close()
        assert num_submitted(sent) == 2
        waits = desk.submit([WANTED], 60.0)
        desk.hear(Aborted(id=0))
        assert num_submitted(sent) == 3
        desk.close(EngineError("it died"))
        with pytest.raises(EngineError, match="it died"):
            await waits.begun()
        assert desk.num_running == 0

    asyncio.run(work())


def test_what_cannot_be_written_is_refused_alone() -> None:
    async def work() -> None:
        desk, sent = desk_of(slots=1)
        wrong, right = desk.submit([([1 << 64], WANTED[1])] * 2, 60.0), desk.submit([WANTED], 60.0)
        with pytest.raises(RequestError, match="cannot be handed to the engine"):
            await wrong.begun()
        assert num_submitted(sent) == 1
        desk.hear(Accepted(id=right.jobs[0].id))
        await right.begun()

    asyncio.run(work())


def test_what_could_not_be_tried_may_be_sent_again_and_is_counted() -> None:
    async def work() -> None:
        desk, _ = desk_of(slots=2)
        submission = desk.submit([WANTED], 60.0)
        desk.hear(Untried(id=0, message="no memory"))
        with pytest.raises(Unavailable, match="no memory") as caught:
            await submission.begun()
        refusal = api_errors.of(caught.value)
        assert (refusal.status, refusal.code, refusal.retry_after) == (503, "grammar_untried", 1)
        assert desk.totals.untried == 1 and desk.num_running == 0
        submission.close()

    asyncio.run(work())
