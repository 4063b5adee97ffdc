"""What waits for ranks is set free once their group has ended: all of it, once, whenever it was given."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from outpace.engine.ranks import release as module
from outpace.engine.ranks.release import STUCK, Release
from outpace.errors import EngineError
from server.running import until

WHY = EngineError("rank 1 failed")


def test_each_call_comes_once_whether_it_was_given_before_or_after_the_end() -> None:
    release, called = Release(), list[str]()
    entered, go_on = Event(), Event()

    def slow() -> None:
        entered.set()
        go_on.wait()
        called.append("before")

    release.add(slow)
    release.begin(WHY)
    entered.wait()
    release.add(lambda: called.append("meanwhile"))
    go_on.set()
    until(lambda: len(called) == 2)
    release.add(lambda: called.append("after"))
    assert called == ["meanwhile", "before", "after"]


def test_collectives_are_aborted_behind_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(module.rendezvous, "abort", lambda: called.append("abort"))
    release = Release()
    release.add(lambda: called.append("exchange"))
    release.begin(WHY)
    until(lambda: len(called) == 2)
    assert called == ["exchange", "abort"]


@pytest.mark.parametrize("comes_free", [True, False])
def test_a_forward_that_stays_stuck_ends_this_process_and_says_why(
    comes_free: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release: Any = Release()
    ended: list[int] = []
    asked: list[int] = []
    monkeypatch.setattr(module, "SECONDS_TO_GIVE_UP", 3600.0 if comes_free else 0.0)
    monkeypatch.setattr(module, "_LOOK_S", 0.001)

    def end(status: int) -> None:
        ended.append(status)
        release.last = None  # the thread that would be gone

    def query() -> bool:
        asked.append(1)
        return comes_free and len(asked) > 5

    monkeypatch.setattr(module.os, "_exit", end)
    release.last = SimpleNamespace(query=query)
    release.begin(WHY)
    if comes_free:
        until(lambda: len(asked) > 5)
        assert not ended
    else:
        until(lambda: bool(ended))
        assert ended == [STUCK]
        assert "rank 1 failed; a forward is stuck on the GPU" in capsys.readouterr().err
