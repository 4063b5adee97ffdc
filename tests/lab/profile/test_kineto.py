"""Traces are read without what makes torch's profiler slow, and say what its own reading says."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch.autograd import profiler

from outpace.lab.profile.kineto import rows_of, tracing


def traced() -> torch.profiler.profile:
    x = torch.randn(64, 64)
    with tracing(host=True, device=False) as trace:
        for _ in range(3):
            x = torch.tanh(x @ x)
    return trace


def test_rows_are_the_profilers_own_events() -> None:
    trace = traced()
    rows = sorted(rows_of(trace, "CPU"), key=lambda row: (row.began, row.name))
    expected = sorted((event.time_range.start, event.name, event.time_range.end) for event in trace.events() or ())
    assert [row.name for row in rows] == [name for _, name, _ in expected]
    assert [row.began for row in rows] == pytest.approx([began for began, *_ in expected])
    assert [row.ended for row in rows] == pytest.approx([ended for *_, ended in expected])
    assert sum(row.name == "aten::tanh" for row in rows) == 3
    assert rows_of(trace) == [], "no kernel of a GPU"


def test_no_event_is_made_an_object_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That takes some tens of microseconds each: seconds for the kernels of a few answers."""

    def parse(*args: object, **options: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(profiler.profile, "_parse_kineto_results", parse)
    trace, path = traced(), tmp_path / "trace.json"
    assert rows_of(trace, "CPU")
    trace.export_chrome_trace(str(path))
    assert json.loads(path.read_text())["traceEvents"]


def test_advice_about_several_cycles_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 gives it for every trace; here it would be an error."""

    def start(self: torch.profiler.profile) -> None:
        warnings.warn("Profiler clears events at the end of each cycle.", UserWarning, stacklevel=2)
        warnings.warn("something else", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.profiler.profile, "start", start)
    with pytest.warns(UserWarning, match="else") as told:
        tracing().start()
    assert [str(one.message) for one in told] == ["something else"]
