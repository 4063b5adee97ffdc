"""The HTTP side's engine: one process that runs, and a new one when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Literal

from outpace.errors import ConfigError, EngineError, OutpaceError
from outpace.server.engine_client.child import Child
from outpace.server.engine_client.desk import Desk
from outpace.server.engine_client.jobs import Submission, Unavailable, Wanted
from outpace.server.engine_client.restarts import Restarts
from outpace.server.wire import (
    AskState,
    Beat,
    CannotStart,
    FromEngine,
    Lost,
    Ready,
    Stalled,
    Start,
    State,
    WireError,
)

Status = Literal["loading", "ready", "draining", "down"]
STATE_SECONDS = 5.0
"""A healthy engine answers within one step."""


class EngineClient:
    """An engine process and the answers in it. `run` must be running.

    Args:
        settings: what to load.
        slots: most answers in the engine at once; None takes the engine's rows.
        queue_limit: most answers that wait.
        restarts: how often the process may die.
        start_timeout: seconds without a sign of life from a process that loads, after which it is killed; 0 waits for
            ever.
        hang_timeout: the same for one that has work.
        tell: writes a log line: an event and its facts.
    """

    def __init__(
        self,
        settings: Start,
        *,
        slots: int | None,
        queue_limit: int,
        restarts: Restarts,
        start_timeout: float,
        hang_timeout: float,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.status: Status = "loading"
        self.reason = "the model is being loaded"
        """Why it is not ready."""
        self.described: dict[str, Any] = {}
        """What `LLM.describe` said of the engine that was ready last."""
        self.num_deaths = 0
        self.desk = Desk(queue_limit)
        self._settings = settings
        self._slots = slots
        self._restarts = restarts
        self._start_timeout = start_timeout
        self._hang_timeout = hang_timeout
        self._silence = 0.0
        """Seconds since the process was heard, while it loads or has work."""
        self._stalled = ""
        """What its ranks were doing when it last said that it does not get on."""
        self._said = ""
        """Why the process goes down, as far as it said so."""
        self._tell = tell
        self._child: Child | None = None
        """From its start until it is gone."""
        self._serves = self._stopped = False
        """Whether the process is ready, and whether it is the last."""
        self._asked: dict[int, asyncio.Future[State]] = {}
        self._asks = count()

    @property
    def ready(self) -> bool:
        return self.status == "ready"

    @property
    def on_gpu(self) -> bool:
        """Whether the model that was ready last is on one."""
        return str(self.described.get("device", "")).startswith("cuda")

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def check_open(self) -> None:
        """Requests are taken; those that come while a new process loads what the last one served wait for it.

        Raises:
            Unavailable: no engine was ready yet, or nothing is taken any more.
        """
        if self.status == "draining":
            raise Unavailable(self.reason, "draining")
        if self.status == "down" or not self.described:
            raise Unavailable(self.reason, "engine_down")

    def submit(self, wanted: Sequence[Wanted], seconds: float, kept: tuple[str, ...] = ()) -> Submission:
        """Queues answers, which have so many seconds and show these special tokens.

        Raises:
            QueueFull: so many do not fit the queue.
            Unavailable: nothing is taken now.
        """
        self.check_open()
        return self.desk.submit(wanted, seconds, kept)

    async def state(self) -> State | None:
        """How the engine is now; None if it is not there, or does not answer in time."""
        if self._child is None or not self._serves:
            return None
        ask = next(self._asks)
        answer = self._asked[ask] = asyncio.get_running_loop().create_future()
        try:
            self._child.send(AskState(ask=ask))
            return await asyncio.wait_for(answer, STATE_SECONDS)
        except TimeoutError:
            return None
        finally:
            del self._asked[ask]

    async def drain(self) -> None:
        """Takes nothing new from now on, and waits until nothing runs or waits."""
        self.status, self.reason = "draining", "the server is shutting down"
        self._tell("draining", {"running": self.desk.num_running, "waiting": self.desk.num_waiting})
        while self.desk.num_running or self.desk.num_waiting:
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Ends the process at once, in whatever it hangs; there is no other after it."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()

    async def run(self) -> None:
        """Keeps an engine process running, until cancelled or stopped. However it ends, nobody waits for an answer.

        Raises:
            ConfigError: what it was to load cannot be loaded, and never was.
            EngineError: it died too often.
        """
        try:
            await self._keep_running()
        except OutpaceError as error:
            self.status, self.reason = "down", str(error)
            self.desk.fail_all(Unavailable(self.reason, "engine_down"))
            raise

    async def _keep_running(self) -> None:
        while True:
            how, served = await self._live()
            if self._stopped:
                return
            self.num_deaths += 1
            self.desk.close(
                Unavailable(
                    f"the engine process {how}, while this answer was in it: send the request again", "engine_died"
                )
            )
            delay = self._restarts.after_death(served=served)
            if delay is None:
                raise EngineError(f"the engine process {how}; it died too often to be started again")
            if self.status != "draining":
                self.status, self.reason = "loading", f"the engine process {how}; a new one is being started"
            self._tell("engine died", {"how": how, "restart_in_s": delay, "deaths": self.num_deaths})
            await asyncio.sleep(delay)

    async def _live(self) -> tuple[str, bool]:
        """One process from its start to its end: how it ended, and whether it was ready before.

        Raises:
            ConfigError: what it was to load cannot be loaded, and never was.
        """
        self._said, self._silence, self._stalled = "", 0.0, ""
        try:
            child = await Child.start(self._settings)
        except OSError as error:
            return f"could not be started: {error}", False
        self._child = child
        self._tell("engine started", {"pid": child.pid})
        watch = asyncio.create_task(self._watch(child))
        try:
            await child.listen(partial(self._hear, child))
        except WireError as error:
            self._said = f": {error}"
        finally:
            hung = watch.result() if watch.done() else ""
            watch.cancel()
            served, self._serves = self._serves, False
            how = await asyncio.shield(child.end())
            self._child = None
        return hung or how + self._said, served

    async def _watch(self, child: Child) -> str:
        """Kills a process that hangs, and says how it did; ends only then."""
        limits = [limit for limit in (self._start_timeout, self._hang_timeout) if limit]
        period = max(0.05, min([1.0, *(limit / 10 for limit in limits)]))
        while True:
            await asyncio.sleep(period)
            loads = not self._serves
            limit = self._start_timeout if loads else self._hang_timeout
            # Counted in periods: a pause of this process is no silence of the other.
            self._silence = self._silence + period if loads or self.desk.num_running else 0.0
            if 0 < limit < self._silence:
                child.kill()
                doing = "it was loading" if loads else "it had work"
                ranks = f": {self._stalled}" if self._stalled else ""
                return f"hung and was killed: {doing} and gave no sign of life for {limit:g} s{ranks}"

    def _hear(self, child: Child, message: FromEngine) -> None:
        """What the process says.

        Raises:
            ConfigError: what it was to load cannot be loaded, and never was.
        """
        self._stalled = message.message if isinstance(message, Stalled) else ""
        if not self._stalled:
            self._silence = 0.0
        match message:
            case Stalled() | Beat():
                pass
            case Lost(message=why):
                self._said = f": {why}"
            case CannotStart(message=why):
                if not self.described:
                    raise ConfigError(why)
                self._said = f", for it could not load what the one before it served: {why}"
            case Ready(settings=settings):
                self._ready(child, settings)
            case State(ask=ask):
                if ask in self._asked and not self._asked[ask].done():
                    self._asked[ask].set_result(message)
            case _:
                self.desk.hear(message)

    def _ready(self, child: Child, settings: dict[str, Any]) -> None:
        self._serves, self.described, self._silence = True, settings, 0.0
        if self.status == "loading":
            self.status, self.reason = "ready", ""
        self._tell("engine ready", {"pid": child.pid, "model": settings["model"], "graphs": settings["graphs"]})
        if reused := settings["engine"].get("expert_reuse"):
            self._tell("lossy", {"expert_reuse": reused, "means": "answers need not be plain decoding's"})
        if chances := settings["engine"].get("simulate_acceptance"):
            means = "answers are worth nothing but their speed"
            self._tell("simulated", {"simulate_acceptance": chances, "means": means})
        self.desk.open(self._slots or settings["engine"]["max_rows"], child.send)
