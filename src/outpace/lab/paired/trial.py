"""Compares two servers: both run all the while, and are asked the same prompts in turns."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal

from outpace.checks import check_integers, check_real
from outpace.errors import ConfigError
from outpace.lab.bench.answer import Answer
from outpace.lab.bench.asks import Ask, read_asks
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.exposed import of_requests
from outpace.lab.bench.load import Driven, drive, go_on
from outpace.lab.bench.progress import Progress
from outpace.lab.bench.run import Ready, Tokens, make_ready
from outpace.lab.bench.settings import Asking
from outpace.lab.paired.blocks import ROLES, RUNS, Block, Role, Run, counted, measure_block
from outpace.lab.paired.guard import State, read_state
from outpace.lab.paired.record import SCHEMA, CompareRecord, Side
from outpace.lab.paired.verdict import judge

Measure = Literal["total", "decode"]
MOST_EXCLUDED = 1 / 3
"""A larger share of blocks that do not count forbids a conclusion."""
DRIFTED = 0.05
ROLES_OF: dict[str, tuple[Role, ...]] = {"A": ("A", "A'"), "B": ("B",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """How two are compared."""

    num_blocks: int = 24
    """Rounds of six runs: A, B and A once more as a control, forwards and backwards, on prompts of their own; fewer
    than 8 give no verdict."""
    margin: float = 0.02
    """A difference that does not matter, as a share: 0.02 is 2%."""
    concurrency: int = 1
    """Requests that run at a time, and prompts in a block."""
    measure: Measure = "total"
    """The speed that is compared: total is tokens over wall-clock time, decode leaves out the time to first token."""

    def __post_init__(self) -> None:
        check_integers(self, ConfigError, {"num_blocks": (1, 10_000), "concurrency": (1, 4096)})
        check_real(self, ConfigError, "margin", 0.0001, 0.5)


@dataclass(frozen=True, slots=True)
class Contender:
    """A server and how it was named."""

    label: str
    endpoint: Endpoint
    commit: str | None = None


async def compare(
    a: Contender,
    b: Contender,
    asking: Asking,
    comparing: Comparing,
    *,
    tokens: Tokens | None = None,
    client: Callable[[], dict[str, Any]],
    state: Callable[[], State] = read_state,
    progress: Callable[[str], None] = lambda text: None,
) -> CompareRecord:
    """Warms both up, measures block by block, and judges.

    Args:
        tokens: counts tokens where a server sends no usage.
        client: takes the fingerprint of this machine.
        state: reads the machine's state after each run.
        progress: told what goes on.

    Being cancelled ends it with the blocks so far, if there is one; the block that was under way does not count.

    Raises:
        ConfigError: a server cannot be measured; the message says why.
    """
    num = comparing.concurrency
    asks = read_asks(asking.workload, num * (comparing.num_blocks + 1))
    progress("asking both servers what they are")
    ready = {
        contender: await make_ready(contender.endpoint, asking, asks[0], tokens) for contender in dict.fromkeys((a, b))
    }
    started_at, machine = datetime.now(UTC).isoformat(timespec="seconds"), client()
    steps = Progress(comparing.num_blocks * RUNS * len(ROLES) * num, progress)
    trial = _Trial({"A": a, "B": b, "A'": a}, ready, asking, comparing, state, steps)
    progress("warming up")
    await trial.ask_all(asks[:num])
    blocks: list[Block] = []
    cut_short = False
    try:
        for index in range(comparing.num_blocks):
            trial.progress.at(f"block {index + 1} of {comparing.num_blocks}")
            blocks.append(await trial.block(index, asks[num * (index + 1) : num * (index + 2)]))
    except asyncio.CancelledError:
        if not blocks:
            raise
        cut_short = True
        go_on()
    return CompareRecord(
        schema=SCHEMA,
        started_at=started_at,
        a=Side(label=a.label, server=ready[a].facts, commit=a.commit),
        b=Side(label=b.label, server=ready[b].facts, commit=b.commit),
        asking=asking,
        num_blocks=comparing.num_blocks,
        concurrency=comparing.concurrency,
        measure=comparing.measure,
        verdict=judge(blocks, comparing.margin, _doubts(blocks)),
        blocks=tuple(blocks),
        cut_short=cut_short,
        notes=(
            *_cut(len(blocks), comparing.num_blocks),
            *(f"of {side}: {mark}" for side, of in (("A", a), ("B", b)) for mark in ready[of].facts.marks),
            *_notes(a, b, blocks),
        ),
        client=machine,
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """The contenders, which have answered once, and how they are asked."""

    of_role: dict[Role, Contender]
    ready: dict[Contender, Ready]
    asking: Asking
    comparing: Comparing
    state: Callable[[], State]
    progress: Progress
    """Of what is measured."""

    async def ask_all(self, asks: Sequence[Ask]) -> None:
        """Asks each server once, unmeasured."""
        for contender in self.ready:
            await self._drive(contender, asks)

    async def block(self, index: int, asks: Sequence[Ask]) -> Block:
        """One block, whose prompts each server has read before: where prefixes are kept, all of its runs find them."""
        await self.ask_all([replace(ask, max_tokens=1) for ask in asks])

        async def measure(role: Role) -> Run:
            contender = self.of_role[role]
            driven = await self._drive(contender, asks, lambda answer: self.progress.done())
            return _run(role, driven, self.ready[contender], self.comparing.measure, self.state())

        return await measure_block(index, measure)

    async def _drive(
        self, contender: Contender, asks: Sequence[Ask], on_done: Callable[[Answer], None] = lambda answer: None
    ) -> Driven:
        return await drive(
            contender.endpoint,
            asks,
            self.asking,
            self.ready[contender].facts.model,
            concurrency=self.comparing.concurrency,
            on_done=on_done,
        )


def _run(role: Role, driven: Driven, ready: Ready, measure: Measure, state: State) -> Run:
    answers = [ready.counted(answer) for answer in driven.answers]
    good = [answer for answer in answers if answer.ok]
    tokens = sum(answer.tokens for answer in good)
    if measure == "total":
        amount, seconds = float(tokens), driven.seconds
    else:
        amount, seconds = sum(answer.decoded for answer in good), sum(answer.decode_s for answer in good)
    told = of_requests(good)
    return Run(
        role=role,
        tok_s=amount / seconds if seconds > 0 else 0.0,
        tokens=tokens,
        seconds=seconds,
        accept_length=None if told is None else told.accept_length,
        digest=hashlib.sha256("\0".join(answer.text for answer in answers).encode()).hexdigest()[:12],
        num_undercounted=sum(answer.undercounted for answer in answers),
        errors=tuple(answer.error for answer in answers if answer.error is not None),
        state=state,
    )


def _doubts(blocks: Sequence[Block]) -> list[str]:
    """What forbids a conclusion."""
    excluded = [block.excluded for block in blocks if block.excluded is not None]
    if len(excluded) <= MOST_EXCLUDED * len(blocks):
        return []
    return [f"{len(excluded)} of {len(blocks)} blocks do not count; the first: {excluded[0]}"]


def _cut(num_blocks: int, planned: int) -> list[str]:
    return [f"cut short: {num_blocks} of {planned} blocks were measured"] if num_blocks < planned else []


def _notes(a: Contender, b: Contender, blocks: Sequence[Block]) -> list[str]:
    notes = []
    for contender in dict.fromkeys((a, b)):
        if not contender.endpoint.is_local:
            notes.append(f"clocks and throttling of {contender.endpoint.url} cannot be seen from here")
    if any(gpu.throttle_reasons is None for block in blocks for run in block.runs for gpu in run.state.gpus):
        notes.append("nvidia-smi does not tell of every GPU whether it is throttled: nothing guards against that")
    notes += [*_counts(blocks), *_texts(counted(blocks))]
    clocks = {role: _clocks(blocks, role) for role in ("A", "B")}
    if all(clocks.values()):
        told = ", ".join(f"{role} {median(mhz):.0f} MHz" for role, mhz in clocks.items())
        notes.append(f"GPU clock after a run, median: {told}")
    work = [run.state.yardstick_s for block in blocks for run in block.runs if run.state.yardstick_s > 0]
    third = len(work) // 3
    if third and abs(slower := median(work[-third:]) / median(work[:third]) - 1.0) > DRIFTED:
        notes.append(f"this machine took {slower:+.0%} for a fixed piece of work at the end, against the start")
    return notes


def _counts(blocks: Sequence[Block]) -> list[str]:
    """Whose speed may be higher than it seems."""
    notes = []
    for side, roles in ROLES_OF.items():
        num = sum(run.num_undercounted for block in blocks for run in block.runs if run.role in roles)
        if num:
            notes.append(
                f"{num} of {side}'s answers came in more pieces than its server counts tokens: its counts, and with "
                "them its speed, may be too low"
            )
    return notes


def _texts(blocks: Sequence[Block]) -> list[str]:
    """Where answers differ, whose doing it is: a side that answers itself otherwise says nothing about the other."""
    notes, steady = [], blocks
    for side, roles in ROLES_OF.items():
        varied = [block for block in blocks if len(block.digests(roles)) > 1]
        steady = [block for block in steady if block not in varied]
        if varied:
            notes.append(
                f"in {len(varied)} of {len(blocks)} blocks {side} answers the same prompts otherwise from run to run: "
                "speeds on different texts, which the interval holds as noise"
            )
    differ = sum(block.digests(ROLES_OF["A"]) != block.digests(ROLES_OF["B"]) for block in steady)
    if differ:
        notes.append(
            f"in {differ} of {len(blocks)} blocks B's answers are not A's, word for word: speeds on different texts"
        )
    return notes


def _clocks(blocks: Sequence[Block], role: str) -> list[float]:
    return [
        gpu.clock_mhz
        for block in blocks
        for run in block.runs
        if run.role == role
        for gpu in run.state.gpus
        if gpu.clock_mhz is not None
    ]
