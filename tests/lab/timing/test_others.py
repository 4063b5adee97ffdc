"""What other programs take: by counts that are written here, and once by this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outpace.lab.timing import others
from outpace.lab.timing.others import Reading, Taken, read, taken

TICK = os.sysconf("SC_CLK_TCK")


def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *seconds: int) -> float | None:
    """What is read where the system's counts are these."""
    stat = tmp_path / "stat"
    stat.write_text(f"cpu  {' '.join(str(each * TICK) for each in seconds)}\ncpu0 1 2 3\n")
    monkeypatch.setattr(others, "STAT", stat)
    return read().busy_s


def test_idle_time_and_guests_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # user, nice, system, idle, waiting for a disk, interrupts, soft interrupts, stolen; guests are in user and nice
    assert counts(tmp_path, monkeypatch, 100, 2, 30, 1000, 500, 4, 5, 60, 70, 80) == 100 + 2 + 30 + 4 + 5 + 60


@pytest.mark.parametrize("text", ["", "intr 5", "cpu one two"])
def test_where_the_system_does_not_tell(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text)
    monkeypatch.setattr(others, "STAT", stat)
    before = read()
    assert before.busy_s is None and taken(before, read()) is None
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    found = others.taken_now(0.0)
    assert found is not None and found.cores == 1.5


def test_own_time_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = taken(Reading(0.0, 100.0, 1.0), Reading(10.0, 118.0, 9.0))
    assert found is not None and found.cores == pytest.approx(1.0) and found.of == 2
    assert str(found) == "1.0 of 2 cores"
    alone = taken(Reading(0.0, 100.0, 1.0), Reading(10.0, 118.0, 19.5))
    assert alone is not None and alone.cores == 0.0, "clocks that tick apart are no minus"
    late = taken(Reading(0.0, 100.0, 1.0), Reading(0.1, 118.0, 1.0))
    assert late is not None and late.cores == 2.0, "nor more than there is"


@pytest.mark.parametrize(
    ("cores", "of", "own", "crowded"), [(0.1, 2, 2, False), (0.4, 2, 2, True), (5.0, 8, 2, False), (7.0, 8, 2, True)]
)
def test_what_crowds(cores: float, of: int, own: int, crowded: bool) -> None:
    """Cores that this process may not use anyway are free to others."""
    assert Taken(cores=cores, of=of, own=own).crowded is crowded


def test_this_machine() -> None:
    found = others.taken_now(0.05)
    assert found is None or 0.0 <= found.cores <= found.of
