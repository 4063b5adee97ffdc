"""Starts, deaths and restarts of the engine process, with one that does as a test says, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from lab import virtual
from outpace import ConfigError, EngineError, SamplingParams
from outpace.server.engine_client import client as module
from outpace.server.engine_client.client import EngineClient
from outpace.server.engine_client.jobs import Submission, Unavailable
from outpace.server.engine_client.restarts import Restarts
from outpace.server.wire import Beat, CannotStart, FromEngine, Ready, Stalled, Start, ToEngine

READY = Ready(settings={"model": {}, "graphs": {}, "engine": {"max_rows": 4}})
LACK = CannotStart(message="KV pages need 3 GiB; 1 GiB is free")
START = Start(model="m", drafter=None, dtype="auto", device="cpu", aux_boundaries=None, options={})
Step = FromEngine | float | OSError
"""A message, a pause in seconds, or why there is no process."""


class Scripted:
    """Stands for `Child`: its nth process plays the nth script, and the last one again and again."""

    scripts: ClassVar[list[list[Step]]] = []
    num_started = 0

    def __init__(self, script: list[Step]) -> None:
        self.pid, self._script = 1, script
        self._killed = asyncio.Event()

    @classmethod
    async def start(cls, settings: Start) -> Scripted:
        script = cls.scripts[min(cls.num_started, len(cls.scripts) - 1)]
        cls.num_started += 1
        if isinstance(script[0], OSError):
            raise script[0]
        return cls(script)

    def send(self, message: ToEngine) -> None:
        pass

    async def listen(self, hear: Callable[[FromEngine], None]) -> None:
        for step in self._script:
            if isinstance(step, float):
                pause = asyncio.create_task(self._killed.wait())
                await asyncio.wait({pause}, timeout=step)
                pause.cancel()
                if self._killed.is_set():
                    return
            else:
                assert not isinstance(step, OSError)
                hear(step)

    def kill(self) -> None:
        self._killed.set()

    async def end(self) -> str:
        return "ended with exit code 0"


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Child", Scripted)
    monkeypatch.setattr("outpace.server.engine_client.restarts.FIRST_DELAY", 0.1)
    Scripted.num_started = 0


def client(
    *scripts: list[Step],
    most: int = 2,
    tell: Callable[[str, dict[str, Any]], None] = lambda event, facts: None,
    **timeouts: float,
) -> EngineClient:
    Scripted.scripts = list(scripts)
    limits = {"start_timeout": 0.0, "hang_timeout": 0.0} | timeouts
    return EngineClient(START, slots=None, queue_limit=9, restarts=Restarts(most), tell=tell, **limits)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual.run(asyncio.wait_for(work(), 20))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def waiting(made: EngineClient) -> Submission:
    """An answer that no engine has been sent yet."""
    return made.submit([([1], SamplingParams(seed=1))], 60.0)


def test_what_never_could_be_loaded_is_not_tried_again() -> None:
    async def work() -> None:
        made = client([LACK])
        with pytest.raises(ConfigError, match="1 GiB is free"):
            await made.run()
        assert Scripted.num_started == 1 and made.status == "down"

    run(work)


@pytest.mark.parametrize("trouble", [[LACK], [OSError("no processes are left")]])
def test_a_start_that_fails_later_is_a_death_like_any_other(trouble: list[Step]) -> None:
    async def work() -> None:
        made = client([READY, 0.05], trouble, trouble, [READY, 60.0], most=3)
        running = asyncio.create_task(made.run())
        await until(lambda: made.ready)
        await until(lambda: not made.ready)
        answer = waiting(made)
        await until(lambda: made.ready)
        assert Scripted.num_started == 4 and made.num_deaths == 3
        assert made.desk.num_running == 1, "what waited is in the new engine"
        answer.close()
        running.cancel()

    run(work)


@pytest.mark.parametrize("trouble", [[LACK], [OSError("no processes are left")], [0.001]])
def test_who_waits_is_told_when_it_is_given_up(trouble: list[Step]) -> None:
    async def work() -> None:
        made = client([READY, 0.05], trouble)
        running = asyncio.create_task(made.run())
        await until(lambda: made.ready)
        await until(lambda: not made.ready)
        answer = waiting(made)
        with pytest.raises(Unavailable, match="too often") as caught:
            await answer.begun()
        assert caught.value.code == "engine_down"
        with pytest.raises(EngineError, match="too often"):
            await running
        with pytest.raises(Unavailable, match="too often"):
            made.check_open()
        assert made.num_deaths == 3

    run(work)


def test_a_load_that_hangs_is_killed_and_one_that_gets_on_is_not() -> None:
    async def work() -> None:
        told: list[Step] = [step for _ in range(8) for step in (Beat(), 0.2)]
        made = client([60.0], [*told, READY, 60.0], start_timeout=0.5)
        running = asyncio.create_task(made.run())
        await until(lambda: made.num_deaths == 1)
        assert "it was loading and gave no sign of life for 0.5 s" in made.reason
        await until(lambda: made.ready)
        await asyncio.sleep(0.8)  # it is idle, and may be silent
        assert made.ready and made.num_deaths == 1
        running.cancel()

    run(work)


def test_what_a_hanging_engine_says_of_its_ranks_is_no_sign_of_life() -> None:
    async def work() -> None:
        told: list[Step] = [step for _ in range(100) for step in (Stalled(message="rank 1 is behind"), 0.1)]
        made = client([READY, *told], hang_timeout=0.5)
        running = asyncio.create_task(made.run())
        await until(lambda: made.ready)
        answer = waiting(made)
        with pytest.raises(Unavailable, match=r"no sign of life for 0.5 s: rank 1 is behind"):
            async for _ in answer:
                pass
        answer.close()
        running.cancel()

    run(work)


def test_an_engine_that_hangs_is_killed_though_every_client_leaves_before() -> None:
    async def work() -> None:
        made = client([READY, 60.0], hang_timeout=0.6)
        running = asyncio.create_task(made.run())
        await until(lambda: made.ready)
        while not made.num_deaths:  # none of them waits for as long as it may be silent
            answer = waiting(made)
            await asyncio.sleep(0.1)
            answer.close()
            await asyncio.sleep(0.1)
        running.cancel()

    run(work)


def test_starts_that_fail_are_counted_however_long_they_take() -> None:
    now = [0.0]
    restarts = Restarts(2, clock=lambda: now[0])
    delays = []
    for _ in range(3):
        now[0] += 3600.0
        delays.append(restarts.after_death(served=False))
    assert delays[0] is not None and delays[1] is not None and delays[2] is None


@pytest.mark.parametrize(
    ("setting", "value", "event"), [("expert_reuse", 2, "lossy"), ("simulate_acceptance", [0.5], "simulated")]
)
def test_an_engine_whose_answers_are_not_what_they_seem_is_told_of(setting: str, value: Any, event: str) -> None:
    """By every process that becomes ready."""
    told: list[tuple[str, dict[str, Any]]] = []
    marked = Ready(settings=READY.settings | {"engine": {"max_rows": 4, setting: value}})

    async def work() -> None:
        made = client([marked, 0.05], [READY, 60.0], tell=lambda *line: told.append(line))
        running = asyncio.create_task(made.run())
        await until(lambda: [name for name, _ in told].count("engine ready") == 2)
        running.cancel()

    run(work)
    ((_, facts),) = [line for line in told if line[0] in ("lossy", "simulated")]
    assert [name for name, _ in told].index(event) == 2 and facts[setting] == value
