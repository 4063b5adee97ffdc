"""Frames come and go: as many as there is room for, the ones that were used last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.test_lossless import answers, prompts
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.engine import frames as module
from outpace.engine.frames import Frames, Shape
from outpace.types import Needs


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


def test_answers_bear_frames_that_come_and_go() -> None:
    target = tiny_target(seed=131)
    llm = engine(target, tiny_drafter(target), max_rows=4)
    runner = llm.engine.runner
    runner.frames = Frames(runner._pair, runner.state, runner.page_size, most=1)
    batch, params = prompts(6, seed=131), [SamplingParams(max_tokens=10 + 3 * i) for i in range(6)]
    assert answers(llm.generate(batch, params)) == answers(engine(target).generate(batch, params))
    assert runner.frames.num_dropped > 2


@pytest.mark.parametrize(("num_failures", "captured"), [(0, True), (1, True), (2, False)])
def test_where_memory_is_short_the_others_go(
    monkeypatch: pytest.MonkeyPatch, num_failures: int, captured: bool
) -> None:
    frames = frames_of(10)
    frames.of(Shape(1, 1, Needs()))
    left = iter([torch.OutOfMemoryError("CUDA out of memory")] * num_failures)

    def record(self: Frames, run: Callable[[], Any]) -> Callable[[], Any]:
        if error := next(left, None):
            raise error
        return lambda: "replayed"

    monkeypatch.setattr(Frames, "_record", record)
    monkeypatch.setattr(Frames, "_warm_up", lambda self, run: None)
    monkeypatch.setattr(module, "_free_generator", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    if captured:
        replay, num_bytes = frames._capture(lambda: None, None)
        assert (replay(), num_bytes) == ("replayed", 0)
    else:
        with pytest.raises(torch.OutOfMemoryError):
            frames._capture(lambda: None, None)
    assert frames.num_dropped == min(1, num_failures)
