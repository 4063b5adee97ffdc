"""Frames come and go: as many as there is room for, the ones that were used last."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from distributed.threads import on_ranks
from engine.test_lossless import answers, prompts
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.distributed.group import Group
from outpace.engine import graphs as module
from outpace.engine.frame_inputs import FrameInputs
from outpace.engine.frames import Frames, Shape
from outpace.engine.graphs import Recorder
from outpace.engine.prefill_frames import PrefillShape
from outpace.types import Changes, Needs, RowSettings


def frames_of(most: int) -> Frames:
    target = tiny_target(seed=130)
    runner = engine(target, tiny_drafter(target)).engine.runner
    return Frames(runner._pair, runner.state, runner.page_size, most=most)


def test_the_one_used_the_longest_time_ago_goes() -> None:
    frames = frames_of(2)
    first, second, third = (Shape(rows, 1, Needs()) for rows in (1, 2, 3))
    kept = frames.of(first)
    dropped = frames.of(second)
    assert frames.of(first) is kept
    frames.of(third)
    assert frames.of(first) is kept and frames.num_dropped == 1
    assert frames.of(second) is not dropped and frames.describe()["dropped"] == 2


def pages_for(*rows: int) -> Changes:
    return Changes(page_rows=rows, page_columns=tuple(range(7, 7 + len(rows))), pages=tuple(range(30, 30 + len(rows))))


def test_inputs_name_rows_and_changes_and_lead_the_rest_to_the_inert_row() -> None:
    inputs = FrameInputs(3, 2, 9, torch.device("cpu"))
    inputs.write((4, 5, 6), pages_for(4, 6))
    assert inputs.rows_B.tolist() == [4, 5, 6]
    found = [inputs.page_rows_C.tolist(), inputs.columns_C.tolist(), inputs.pages_C.tolist()]
    assert found == [[4, 6], [7, 8], [30, 31]]
    inputs.write((1,), pages_for(1))
    assert inputs.rows_B.tolist() == [1, 9, 9]
    found = [inputs.page_rows_C.tolist(), inputs.columns_C.tolist(), inputs.pages_C.tolist()]
    assert found == [[1, 9], [7, 0], [30, 0]], "page 0 is the trash page"


def test_a_frame_takes_the_pages_of_one_cycle_and_no_rows_that_were_filled() -> None:
    """Five tokens a row, four to a page: they may touch the ends of three pages, and two of them are new."""
    inputs = frames_of(1).of(Shape(2, 4, Needs())).inputs
    assert inputs.fit(pages_for(0, 0, 1, 1))
    assert not inputs.fit(pages_for(*[0] * 7))
    filled = RowSettings(row=0, num_cached=0, params=SamplingParams(), seed=0, max_k=4)
    assert not inputs.fit(Changes(rows=(filled,)))


def test_answers_bear_frames_that_come_and_go() -> None:
    target = tiny_target(seed=131)
    llm = engine(target, tiny_drafter(target), max_rows=4)
    runner = llm.engine.runner
    runner.frames = Frames(runner._pair, runner.state, runner.page_size, most=1)
    batch, params = prompts(6, seed=131), [SamplingParams(max_tokens=10 + 3 * i) for i in range(6)]
    assert answers(llm.generate(batch, params)) == answers(engine(target).generate(batch, params))
    described = runner.frames.describe()
    assert described["dropped"] > 2
    assert described["eager_replays"] == described["replays"] > 10, "a CPU has no graphs, and that is said"


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture asks of a device."""
    monkeypatch.setattr(module, "_free_generator", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)


@pytest.mark.parametrize(("num_failures", "captured"), [(0, True), (1, True), (2, False)])
def test_where_memory_is_short_the_others_go(
    monkeypatch: pytest.MonkeyPatch, no_cuda: None, num_failures: int, captured: bool
) -> None:
    frames = frames_of(10)
    frames.of(Shape(1, 1, Needs()))
    frames.of(PrefillShape(1, 16, True, Needs()))
    left = iter([torch.OutOfMemoryError("CUDA out of memory")] * num_failures)

    def record(self: Recorder, run: Callable[[], Any]) -> Callable[[], Any]:
        if error := next(left, None):
            raise error
        return lambda: "replayed"

    monkeypatch.setattr(Recorder, "_record", record)
    monkeypatch.setattr(Recorder, "_warm_up", lambda self, run: None)
    if captured:
        replay, num_bytes = frames._recorder._capture(lambda: None, None, frames._drop_all)  # type: ignore[arg-type, return-value]
        assert (replay(), num_bytes) == ("replayed", 0)
    else:
        with pytest.raises(torch.OutOfMemoryError):
            frames._recorder._capture(lambda: None, None, frames._drop_all)  # type: ignore[arg-type, return-value]
    assert frames.num_dropped == 2 * min(1, num_failures), "the cycle's and the prefill's"


def on_rank(group: Group) -> Recorder:
    return Recorder(torch.device("cpu"), group)


@pytest.mark.parametrize("failing", [(), (1,), (0, 1)])
def test_ranks_run_a_forward_as_a_graph_all_of_them_or_none(
    failing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, no_cuda: None
) -> None:
    def record(self: Recorder, run: Callable[[], Any]) -> Callable[[], Any]:
        group = self._group
        group.calls.begun += 1 + group.rank  # as far as each came
        if group.rank in failing:
            raise RuntimeError("operation not permitted\nwhen capturing")
        return lambda: "replayed"

    monkeypatch.setattr(Recorder, "_record", record)
    monkeypatch.setattr(Recorder, "_warm_up", lambda self, run: None)

    def captured(group: Group) -> tuple[str, str | None, tuple[int, int]]:
        replay, _, why_not = on_rank(group)._captured(lambda: "run", None, bool)  # type: ignore[arg-type, return-value]
        return str(replay()), why_not, (group.calls.begun, group.calls.ended)

    found = on_ranks(2, captured)
    assert [how for how, _, _ in found] == ["run" if failing else "replayed"] * 2
    own = "RuntimeError: operation not permitted"
    assert [why for _, why, _ in found] == [
        None if not failing else own if rank in failing else "rank 1 could not" for rank in range(2)
    ]
    assert [calls for _, _, calls in found] == [(1, 1)] * 2, "the vote, and nothing of what was only recorded"


def test_what_one_of_several_ranks_raises_before_it_records_is_the_forwards(
    monkeypatch: pytest.MonkeyPatch, no_cuda: None
) -> None:
    """Others may wait for it there, so it cannot run the cycle eagerly and leave them."""

    def fail(self: Recorder, run: Callable[[], Any]) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Recorder, "_warm_up", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        on_rank(Group(size=2))._captured(lambda: None, None, bool)  # type: ignore[arg-type, return-value]
    assert on_rank(Group())._captured(lambda: None, None, bool)[2] == "RuntimeError: no memory"  # type: ignore[arg-type, return-value]


def test_frames_that_nobody_holds_are_gone_at_once() -> None:
    """With the memory of their graphs, which waits for no garbage collection."""
    frames = frames_of(2)
    gone = weakref.ref(frames)
    gc.disable()
    try:
        del frames
        assert gone() is None
    finally:
        gc.enable()
