"""The engine's process as the event loop that reads it sees it: started, given up, ended, while other things go on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from outpace.distributed.workers import Worker
from outpace.server.engine_client import child as module
from outpace.server.engine_client.child import Child
from outpace.server.wire import Beat, CannotStart, FromEngine, Lost, Start, WireError, pack
from server.running import SECONDS, is_alive

START = Start(model="/no/such/model", drafter=None, dtype="float32", device="cpu", aux_boundaries=None, options={})


class Started(Worker):
    """The one that was started last."""

    last: Worker

    def __init__(self, *words: str, **options: dict[str, str]) -> None:
        super().__init__(*words, **options)  # type: ignore[arg-type]
        Started.last = self


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await work()

    asyncio.run(in_time(), debug=True)


async def gone(pid: int) -> None:
    while is_alive(pid):
        await asyncio.sleep(0.01)


def test_one_that_cannot_load_says_so_and_how_it_ended() -> None:
    async def work() -> None:
        child = await Child.start(START)
        said: list[FromEngine] = []
        await child.listen(said.append)
        assert isinstance(said[-1], CannotStart) and "/no/such/model" in said[-1].message
        assert await child.end() == "ended with exit code 0"
        assert not Path(f"/proc/{child.pid}").exists()
        child.send(START)  # what a dead one was to hear is lost
        child.kill()

    run(work)


def test_one_that_does_not_end_is_killed_while_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.5)

    async def work() -> None:
        child = await Child.start(START)
        os.kill(child.pid, signal.SIGSTOP)
        ending, ticks = asyncio.create_task(child.end()), 0
        while not ending.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ending.result() == "was killed, since it had not ended 0.5 s after it was told to"
        assert ticks >= 5
        await gone(child.pid)

    run(work)


def test_nobody_waits_for_one_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a driver holds it; then it ends after the event loop that gave it up."""
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.1)
    monkeypatch.setattr(Worker, "kill", lambda worker: None)
    monkeypatch.setattr(module, "Worker", Started)

    async def work() -> None:
        child = await Child.start(START)
        os.kill(child.pid, signal.SIGSTOP)
        assert await child.end() == f"cannot be killed (pid {child.pid}): its driver may hang"

    run(work)
    os.kill(Started.last.pid, signal.SIGKILL)
    assert Started.last.ended.result(SECONDS) == -signal.SIGKILL


def test_one_whose_start_is_given_up_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Worker", Started)

    async def never(*arguments: object, **options: object) -> None:
        os.kill(Started.last.pid, signal.SIGSTOP)  # it would not notice
        await asyncio.sleep(SECONDS)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", never)

    async def work() -> None:
        starting = asyncio.create_task(Child.start(START))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await gone(Started.last.pid)

    run(work)


class Speaking:
    """Stands for a `Worker`: a process that says what a test writes."""

    def __init__(self, *words: object, **options: object) -> None:
        self.connection, self.theirs = socket.socketpair()
        self.pid, self.ended = 0, Future[int]()
        Speaking.last = self

    last: Speaking


@pytest.mark.parametrize("wrong", [b"\xff" * 8, pack(Lost(message="no"))], ids=["no message", "one that is refused"])
def test_nothing_is_heard_behind_what_is_wrong(wrong: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Worker", Speaking)
    heard: list[FromEngine] = []

    def hear(message: FromEngine) -> None:
        if isinstance(message, Lost):
            raise WireError("refused")
        heard.append(message)

    async def work() -> None:
        child = await Child.start(START)
        worker = Speaking.last
        with worker.theirs:
            worker.theirs.sendall(pack(Beat()) + wrong + pack(Beat()))
            with pytest.raises(WireError):
                await child.listen(hear)
            assert heard == [Beat()]
            worker.ended.set_result(0)
            assert await child.end() == "ended with exit code 0"

    run(work)


def test_who_gives_up_listening_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Worker", Speaking)
    heard: list[FromEngine] = []

    async def work() -> None:
        child = await Child.start(START)
        worker = Speaking.last
        with worker.theirs:
            listening = asyncio.create_task(child.listen(heard.append))
            worker.theirs.sendall(pack(Beat()))
            while not heard:
                await asyncio.sleep(0)
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
            worker.theirs.sendall(pack(Beat()))
            await asyncio.sleep(0.01)
            assert heard == [Beat()]
            worker.ended.set_result(0)
            await child.end()

    run(work)
