"""Clients that ask, leave and talk nonsense, all at once, and what must be true of the server then and afterwards."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from statistics import median
from typing import Any

import httpx2 as httpx

from soaking.asked import CHAT, NONSENSES, RAW, requests
from soaking.process import Server, resident

LEAVE, NONSENSE = 0.2, 0.1
"""Parts of all requests."""
KILL_AT = (0.1, 0.2)
"""Parts of the run at which the engine is killed: early, so that the last one lives long enough to show a leak."""
WARM, LAST = (0.4, 0.5), (0.9, 1.0)
"""Parts of the run over which memory is taken."""
MORE_MEMORY = 1.05
STUCK_S = 90.0
"""No request may take longer: the server's own --request-timeout has ended it long before."""


class Soak:
    """Clients against a server.

    Args:
        server: running.
        url: of it.
        args: how long, how many.
    """

    def __init__(self, server: Server, url: str, args: argparse.Namespace) -> None:
        self.server = server
        self.args = args
        self.random = random.Random(args.seed)
        self.http = httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))
        self.port = httpx.URL(url).port
        self.asked = requests()
        self.alone: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.http.get("/v1/outpace/state", timeout=STUCK_S)).json()
        return state

    async def run(self) -> None:
        """All of it: each request alone, then everybody together, then the quiet in which nothing may be left."""
        for path, body in self.asked:
            answer = await self._whole(path, body)
            assert not isinstance(answer, int), "a sound request was refused"
            self.alone.append(answer)
        self.begun = time.monotonic()
        self.until = self.begun + self.args.seconds
        others = [asyncio.create_task(self._watch_memory()), asyncio.create_task(self._kill())]
        await asyncio.gather(*(self._client() for _ in range(self.args.clients)))
        await asyncio.gather(*others)
        await self._quiet()
        await self.http.aclose()

    def fail(self, what: str) -> None:
        self.counts["failures"] += 1
        if len(self.failures) < 20:
            self.failures.append(what[:500])

    async def _client(self) -> None:
        while time.monotonic() < self.until:
            chance = self.random.random()
            try:
                async with asyncio.timeout(STUCK_S):
                    if chance < LEAVE:
                        await self._leave()
                    elif chance < LEAVE + NONSENSE:
                        await self._nonsense()
                    else:
                        await self._ask()
            except TimeoutError:
                self.fail(f"a request was stuck for {STUCK_S:g} s")
            except httpx.HTTPError as error:
                self.fail(f"{type(error).__name__}: {error}")

    async def _ask(self) -> None:
        """A sound request that is heard to its end."""
        which = self.random.randrange(len(self.asked))
        path, body = self.asked[which]
        asks = self._streamed if self.random.random() < 0.5 else self._whole
        answer = await asks(path, body)
        if isinstance(answer, int):
            self.counts["killed"] += 1
        elif answer == self.alone[which]:
            self.counts["equal"] += 1
        else:
            self.fail(f"request {which} alone gave {self.alone[which]}, and now {answer}")

    async def _whole(self, path: str, body: dict[str, Any]) -> tuple[str, str] | int:
        """(text, how it ended), or the status where the engine was killed under it."""
        response = await self.http.post(path, json=body)
        if response.status_code == 503 and response.json()["error"]["code"] == "engine_died":
            return 503
        if response.status_code != 200:
            self.fail(f"{path} {body} got {response.status_code}: {response.text}")
            return response.status_code
        (choice,) = response.json()["choices"]
        return choice["message"]["content"] if path == CHAT else choice["text"], choice["finish_reason"]

    async def _streamed(self, path: str, body: dict[str, Any], most_events: int = 1 << 30) -> tuple[str, str] | int:
        text, finish_reason, num_events = "", "", 0
        async with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
                died = response.status_code == 503 and response.json()["error"]["code"] == "engine_died"
                if not died:
                    self.fail(f"{path} {body} got {response.status_code}: {response.text}")
                return response.status_code
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    if event["error"]["code"] != "engine_died":
                        self.fail(f"{path} {body} ended with {event}")
                    return 503
                (choice,) = event["choices"]
                text += choice["delta"].get("content", "") if path == CHAT else choice["text"]
                finish_reason = choice["finish_reason"] or finish_reason
                num_events += 1
                if num_events >= most_events:
                    break
        return text, finish_reason

    async def _leave(self) -> None:
        """A sound request whose client goes away, at any moment."""
        path, body = self.random.choice(self.asked)
        self.counts["left"] += 1
        if self.random.random() < 0.5:
            await self._streamed(path, body, most_events=self.random.randrange(1, 12))
            return
        task = asyncio.create_task(self._whole(path, body))
        await asyncio.wait({task}, timeout=self.random.expovariate(2.0))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _nonsense(self) -> None:
        self.counts["nonsense"] += 1
        if self.random.random() < 0.2:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(self.random.choice(RAW))
            with_answer = asyncio.wait_for(reader.read(1000), 0.5)  # one in three is never answered: it waits for more
            await asyncio.gather(with_answer, return_exceptions=True)
            writer.close()
            return
        path, content = self.random.choice(NONSENSES)
        response = await self.http.post(path, content=content, headers={"Content-Type": "application/json"})
        if not 400 <= response.status_code < 500:
            self.fail(f"nonsense {content[:80]!r} got {response.status_code}")

    async def _kill(self) -> None:
        for part in KILL_AT:
            await asyncio.sleep(max(0.0, self.begun + part * self.args.seconds - time.monotonic()))
            while not ((state := await self.state())["status"] == "ready" and state["running"]):
                await asyncio.sleep(0.1)
            os.kill(state["engine_pid"], signal.SIGKILL)
            self.counts["kills"] += 1

    async def _watch_memory(self) -> None:
        while time.monotonic() < self.until:
            state = await self.state()
            if state["status"] == "ready" and state["engine_pid"] is not None:
                sizes = resident(self.server.process.pid), resident(state["engine_pid"])
                self.server.memory.append((time.monotonic(), *sizes))
            await asyncio.sleep(self.args.seconds / 200)

    async def _quiet(self) -> None:
        """Nothing runs, waits or holds a page."""
        deadline = time.monotonic() + 10
        while True:
            state = await self.state()
            pages = state["now"]["pages"] if state["now"] else {"total": -1, "free": 0, "cached": 0}
            held = pages["total"] - pages["free"] - pages["cached"]
            if not (state["running"] or state["waiting"] or held):
                break
            if time.monotonic() > deadline:
                self.fail(f"{state['running']} run, {state['waiting']} wait and {held} pages are held with no client")
                break
            await asyncio.sleep(0.1)
        self.last = state

    def verdict(self) -> dict[str, Any]:
        """What came of it; failures are added to `failures`."""
        memory = {name: self._memory(place) for place, name in ((1, "server"), (2, "engine"))}
        for name, sizes in memory.items():
            if sizes["ratio"] > MORE_MEMORY:
                self.fail(f"the {name} grew to {sizes['ratio']} of its memory after warming up")
        slots, counts = self.last["slots"], self.counts
        if counts["kills"] != len(KILL_AT) or self.last["engine_deaths"] != len(KILL_AT):
            self.fail(f"{counts['kills']} kills, {self.last['engine_deaths']} deaths of the engine")
        if counts["killed"] > slots * len(KILL_AT):
            self.fail(f"{counts['killed']} answers failed by {counts['kills']} kills of an engine that holds {slots}")
        preempted = self.last["now"]["preempted"] if self.last["now"] else 0
        if preempted < len(self.asked):
            self.fail(f"answers gave their pages back {preempted} times only: give fewer --num-pages")
        if any(event["event"] == "request" and event["status"] == 500 for event in self.server.events):
            self.fail("the log has a 500")
        return {
            "requests": {name: counts[name] for name in ("equal", "killed", "left", "nonsense")},
            "kills": counts["kills"],
            "tokens": self.last["totals"]["tokens"],
            "preempted_by_the_last_engine": preempted,
            "memory": memory,
        }

    def _memory(self, place: int) -> dict[str, float]:
        def middle(window: tuple[float, float]) -> float:
            low, high = (self.begun + part * self.args.seconds for part in window)
            return median(sample[place] for sample in self.server.memory if low <= sample[0] <= high)

        warm, last = middle(WARM), middle(LAST)
        mib = {"warm_mib": round(warm / 2**20, 1), "end_mib": round(last / 2**20, 1)}
        return mib | {"ratio": round(last / warm, 4)}
