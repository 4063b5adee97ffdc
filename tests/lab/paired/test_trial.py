"""Comparisons of servers whose speeds are known, on a clock of our own."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from lab.bench.test_odd_servers import Odd, counting
from lab.fake_server import FakeServer
from lab.virtual import run
from outpace.errors import ConfigError
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.settings import Asking
from outpace.lab.paired.guard import Gpu, State
from outpace.lab.paired.record import CompareRecord
from outpace.lab.paired.trial import Comparing, Contender, compare

QUIET = State()


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("asks") / "asks.jsonl"
    path.write_text("".join(json.dumps(f"Question {n}?") + "\n" for n in range(30)))
    return str(path)


def compared(
    workload: str, a: FakeServer | Odd, b: FakeServer | Odd, *, states: Any = lambda: QUIET, **settings: Any
) -> CompareRecord:
    async def whole() -> CompareRecord:
        return await compare(
            Contender("a", Endpoint("http://a:1", transport=a)),
            Contender("b", Endpoint("http://b:1", transport=b)),
            Asking(workload=(workload,)),
            Comparing(**{"num_blocks": 8} | settings),
            client=dict,
            state=states,
        )

    return run(whole())


@pytest.mark.parametrize("at", [20, 21, 26])
def test_blocks_before_it_was_cut_short_are_kept(at: int, workload: str) -> None:
    """A has answered once, warmed up once, and answers five times a block: the fourth is under way."""
    a = FakeServer(engine="vllm")
    told: list[str] = []

    async def whole() -> CompareRecord:
        task = asyncio.current_task()
        assert task is not None
        a.on_asked = lambda number: task.cancel() and None if number == at else None
        return await compare(
            Contender("a", Endpoint("http://a:1", transport=a)),
            Contender("b", Endpoint("http://b:1", transport=FakeServer(engine="vllm"))),
            Asking(workload=(workload,)),
            Comparing(num_blocks=9),
            client=dict,
            state=lambda: QUIET,
            progress=told.append,
        )

    record = run(whole())
    num = (at - 3) // 5
    assert record.cut_short and len(record.blocks) == record.verdict.num_blocks == num and record.num_blocks == 9
    assert record.notes[0] == f"cut short: {num} of 9 blocks were measured"
    assert any(text.startswith("measuring: block 2 of 9, 7 of 54 requests, about") for text in told)
    assert not compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm")).cut_short


def test_without_a_whole_block_there_is_nothing_to_keep(workload: str) -> None:
    a = FakeServer(engine="vllm")

    async def whole() -> None:
        task = asyncio.current_task()
        assert task is not None
        a.on_asked = lambda number: task.cancel() and None if number == 4 else None
        await compare(
            Contender("a", Endpoint("http://a:1", transport=a)),
            Contender("b", Endpoint("http://b:1", transport=FakeServer(engine="vllm"))),
            Asking(workload=(workload,)),
            Comparing(),
            client=dict,
            state=lambda: QUIET,
        )

    with pytest.raises(asyncio.CancelledError):
        run(whole())


def test_a_slower_server_is_slower_by_as_much(workload: str) -> None:
    verdict = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm", slower=1.05)).verdict
    assert verdict.kind == "slower"
    assert verdict.ratio is not None and verdict.ratio.value == pytest.approx(1 / 1.05, rel=1e-3)
    assert verdict.control is not None and verdict.control.value == pytest.approx(1.0)
    swapped = compared(workload, FakeServer(engine="vllm", slower=1.05), FakeServer(engine="vllm")).verdict
    assert swapped.kind == "faster"


def test_equal_servers_are_equivalent(workload: str) -> None:
    verdict = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="sglang", per_chunk=3)).verdict
    assert verdict.kind == "equivalent" and verdict.margin == 0.02


def test_the_speed_without_the_wait(workload: str) -> None:
    a, b = FakeServer(engine="vllm"), FakeServer(engine="vllm", ttft_s=0.9)
    assert compared(workload, a, b, measure="decode").verdict.kind == "equivalent"
    assert compared(workload, a, b, measure="total").verdict.kind == "slower"


def test_several_at_a_time(workload: str) -> None:
    a, b = FakeServer(engine="outpace"), FakeServer(engine="outpace", slower=1.1)
    record = compared(workload, a, b, concurrency=3)
    assert a.most_running == b.most_running == 3
    assert record.verdict.kind == "slower"
    assert record.blocks[0].runs[0].tok_s == pytest.approx(3 * 61 / 0.6, rel=0.01)
    assert record.blocks[0].runs[0].accept_length == pytest.approx(3.0)


def test_prompts_are_read_before_they_are_measured(workload: str) -> None:
    """Or the first run of a block would pay for a prefix that the others find."""
    a = FakeServer(engine="vllm")
    compared(workload, a, FakeServer(engine="vllm"), num_blocks=8)
    asked = [(body["messages"][0]["content"], body["max_tokens"]) for body in a.asked[2:]]
    for block in range(8):
        mine = asked[5 * block : 5 * block + 5]
        assert len({text for text, _ in mine}) == 1
        assert [most for _, most in mine] == [1, 256, 256, 256, 256], "A and A' twice each, after a short one"


def test_failures_exclude_their_blocks_and_too_many_forbid_a_conclusion(workload: str) -> None:
    failing = FakeServer(engine="vllm", fail_every=17)
    record = compared(workload, FakeServer(engine="vllm", slower=1.5), failing, num_blocks=16)
    excluded = [block.excluded for block in record.blocks if block.excluded]
    assert excluded and set(excluded) == {"a request failed: HTTP 500: the engine is on fire"}
    assert record.verdict.kind == "faster" and record.verdict.num_excluded == len(excluded)
    worse = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm", fail_every=4), num_blocks=16)
    assert worse.verdict.kind == "inconclusive"
    assert "blocks do not count; the first: a request failed: HTTP 500" in worse.verdict.reasons[0]


def test_throttled_blocks_do_not_count(workload: str) -> None:
    read = 0

    def states() -> State:
        nonlocal read
        read += 1
        hot = 6 < read <= 12
        reasons = ("hardware thermal slowdown",) if hot else ()
        return State(gpus=(Gpu(clock_mhz=1200.0, throttle_reasons=reasons, temperature_c=90.0, power_w=700.0),))

    record = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm"), states=states, num_blocks=9)
    assert [block.index for block in record.blocks if block.excluded] == [1]
    assert any(note.startswith("GPU clock after a run") for note in record.notes)
    assert not any("throttled" in note for note in record.notes)


def test_a_gpu_that_says_nothing_of_throttling_is_told(workload: str) -> None:
    state = State(gpus=(Gpu(clock_mhz=1200.0, throttle_reasons=None, temperature_c=90.0, power_w=700.0),))
    server = FakeServer(engine="vllm")
    record = compared(workload, server, FakeServer(engine="vllm"), states=lambda: state)
    assert any("nothing guards against that" in note for note in record.notes)


def test_other_answers_are_told(workload: str) -> None:
    record = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm", tokens=40))
    assert [note for note in record.notes if "answers" in note] == [
        "in 8 of 8 blocks B's answers are not A's, word for word: speeds on different texts"
    ]
    same = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm"))
    assert not any("answers" in note for note in same.notes)


def test_a_side_whose_answers_are_not_what_they_seem_is_named(workload: str) -> None:
    simulated = FakeServer(engine="outpace", marked={"simulate_acceptance": [0.6]})
    record = compared(workload, FakeServer(engine="outpace"), simulated)
    assert [note for note in record.notes if "simulated" in note] == [
        "of B: its acceptance is simulated, so only times mean anything, and the texts nothing"
    ]


@pytest.mark.parametrize("low", ["A", "B"])
def test_counts_that_may_be_too_low_are_noted_for_their_side(workload: str, low: str) -> None:
    servers = {side: counting(2 if side == low else 4) for side in "AB"}
    (note,) = (n for n in compared(workload, servers["A"], servers["B"]).notes if "pieces" in n)
    num = 32 if low == "A" else 16
    assert note.startswith(f"{num} of {low}'s answers came in more pieces than its server counts tokens")


@pytest.mark.parametrize("varying", ["A", "B", "AB"])
def test_a_side_that_answers_otherwise_each_time_is_named_and_the_other_is_not(workload: str, varying: str) -> None:
    a, b = (FakeServer(engine="vllm", varies=side in varying) for side in "AB")
    notes = [note for note in compared(workload, a, b).notes if "texts" in note]
    assert [note.split(" answers ")[0] for note in notes] == [f"in 8 of 8 blocks {side}" for side in varying]


def test_a_machine_that_slows_down_is_told(workload: str) -> None:
    yardstick = 0.001

    def states() -> State:
        nonlocal yardstick
        yardstick *= 1.01
        return State(yardstick_s=yardstick)

    record = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm"), states=states)
    assert any("for a fixed piece of work at the end" in note for note in record.notes)


def test_rows(workload: str) -> None:
    record = compared(workload, FakeServer(engine="vllm"), FakeServer(engine="vllm"))
    rows = record.rows()
    assert len(rows) == 6 * 8
    assert all(math.isclose(row["tok_s"], row["tokens"] / row["seconds"]) for row in rows)


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="margin is 2"):
        Comparing(margin=2.0)
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        Comparing(num_blocks=0)
